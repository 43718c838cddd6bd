"""The settings of a model folder, as sentence-transformers reads them. Where it has others than are read
here, the teacher compares its embeddings with those of sentence-transformers itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from pydantic import PositiveInt
from transformers import CONFIG_MAPPING

from edgedistill import files
from edgedistill.errors import UserError, first_line, unknown_name, wants_memory
from edgedistill.files import Json
from edgedistill.runtime.manifest import Part, validated

ELSEWHERE = "embed with sentence-transformers, and give the file as teacher.embeddings"
INSTALL = "install what it names, or give a model that opens without"
TEACH = "a bundle is a graph, so teach a student with it instead (edgedistill train)"
DOWNLOAD = "download the whole model again"
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# The settings of the Transformer module: the first of these that holds any.
TRANSFORMER_FILES = [
    f"sentence_{name}_config.json"
    for name in "bert roberta distilbert camembert albert xlm-roberta xlnet".split()
]
# sentence-transformers' flags, in the order in which it joins them whatever their order in the file: its new
# names, ours
POOLINGS = {
    "pooling_mode_cls_token": ("cls", "cls"),
    "pooling_mode_max_tokens": ("max", "max"),
    "pooling_mode_mean_tokens": ("mean", "mean"),
    "pooling_mode_mean_sqrt_len_tokens": ("mean_sqrt_len_tokens", "mean_sqrt_len"),
    "pooling_mode_weightedmean_tokens": ("weightedmean", "weighted_mean"),
    "pooling_mode_lasttoken": ("lasttoken", "last"),
}
POOLING_NAMES = dict(POOLINGS.values())
# of a Dense: sentence-transformers' names, and torch's in short
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "Tanh",
    "torch.nn.modules.linear.Identity": "Identity",
    "torch.nn.modules.activation.ReLU": "ReLU",
    "torch.nn.modules.activation.GELU": "GELU",
    "torch.nn.modules.activation.Sigmoid": "Sigmoid",
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# Settings whose values are read here, whatever they are,
READ = {
    *("max_seq_length", "do_lower_case", "include_prompt", "pooling_mode", *POOLINGS),
    *("in_features", "out_features", "bias", "activation_function"),
    *("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name"),
    # and those that change no embedding: the tokens have their width, nothing is dropped, versions are told
    *("embedding_dimension", "word_embedding_dimension", "dropout", "unpad_inputs", "__version__"),
}
# Others mean the same as none with these values.
EXPECTED: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": tuple(
        {"text": {"method": "forward", "method_output_name": name}}
        for name in ("last_hidden_state", ["last_hidden_state"])
    ),
    "module_input_name": ("sentence_embedding",),
    "model_type": ("SentenceTransformer",),
}
MODEL_SETTINGS_FILE = "config_sentence_transformers.json"


class _Settings(Part):
    """What is read of the settings of a model and of its Transformer module."""

    max_seq_length: PositiveInt | None = None
    truncate_dim: PositiveInt | None = None
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


class _Entry(Part):
    type: str
    path: str
    name: str = ""


class _Modules(Part):
    """modules.json."""

    modules: list[_Entry]


class Module(NamedTuple):
    """One module: its name, its kind, its folder and its settings."""

    name: str
    kind: str
    folder: Path
    config: Json = {}  # noqa: RUF012 (a NamedTuple's default, never written to)


@dataclass(frozen=True)
class ModelFolder:
    """What the JSON files of a model folder say; nothing of its weights and tokenizer is open.

    `transformer` is the folder of the transformer inside it, and `config` its config.json with its
    architecture's defaults. `options` are the settings of the Transformer module, `chain` holds the modules
    behind it, none for a plain model, and `settings` is config_sentence_transformers.json. Options and
    settings are {} without a modules.json: sentence-transformers reads neither. `unread` names the settings
    that are not read here: whether they change embeddings is for sentence-transformers to say.
    """

    folder: Path
    transformer: Path
    config: Json
    options: Json
    chain: list[Module]
    settings: Json
    unread: list[str]

    @property
    def poolings(self) -> list[str]:
        """Our names of its poolings, in the order in which they are joined; [] for a plain model."""
        for module in self.chain:
            if module.kind == "Pooling":
                flags = [name for flag, (name, _) in POOLINGS.items() if module.config.get(flag)]
                named = module.config.get("pooling_mode") or flags or ["mean"]
                return [_pooling(name, module) for name in ([named] if isinstance(named, str) else named)]
        return []

    @property
    def is_encoder(self) -> bool:
        """Whether it is the encoder alone of an encoder with a decoder, such as a T5's."""
        return any(name.endswith("EncoderModel") for name in self.config.get("architectures") or [])

    @property
    def prompts(self) -> dict[str, str]:
        """Its named prompts."""
        return {name: text or "" for name, text in (self.settings.get("prompts") or {}).items()}

    @property
    def default_prompt(self) -> str:
        """The text that it puts before every text; perhaps none."""
        return self.prompts.get(self.settings.get("default_prompt_name", ""), "")

    @property
    def pools_prompt(self) -> bool:
        """Whether a prompt's tokens are part of the pooling, as they are unless its settings leave them
        out."""
        return all(module.config.get("include_prompt", True) for module in self.chain)

    @property
    def kept_dims(self) -> int | None:
        """How many of its dimensions a Matryoshka model keeps; None for all."""
        return self.settings.get("truncate_dim")

    @property
    def lower_case(self) -> bool:
        """Whether every text is put in lower case before the tokenizer's own normalizer."""
        return bool(self.options.get("do_lower_case"))

    @property
    def max_tokens(self) -> int | None:
        """The limit that its settings put in place of the tokenizer's; None where they have none."""
        of_tokenizer = self.options.get("tokenizer_args", self.options.get("processor_kwargs")) or {}
        limit = of_tokenizer.get("model_max_length", self.options.get("max_seq_length"))
        return None if limit is None else int(limit)

    @property
    def similarity(self) -> str:
        """How it says that embeddings are compared: cosine, dot, euclidean or manhattan."""
        named = self.settings.get("similarity_fn_name")
        return named if named in SIMILARITIES else "cosine"

    @property
    def is_unit(self) -> bool:
        """Whether its own embeddings have unit length."""
        return any(module.kind == "Normalize" for module in self.chain)


def read(folder: Path) -> ModelFolder:
    """Read and check what the JSON files of a model folder say; nothing outside the folder is read.

    Raises UserError where there is no such folder or no model in it, where files hold no JSON, and for a
    module or setting that is not supported here.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such model folder; give a folder, packaged:NAME, or a hub id with a revision"
        )
    modules = _modules(folder)
    transformer = modules[0].folder if modules else folder
    for place in (folder, transformer):
        if adapter := _object(place / "adapter_config.json"):
            raise UserError(
                f"{place}: adapter_config.json: an adapter (LoRA) of "
                f"{adapter.get('base_model_name_or_path')!r}, not merged into a model; merge it with peft "
                "(merge_and_unload), save that model, and give its folder"
            )
    if not (transformer / "config.json").exists():
        raise UserError(f"{folder}: no config.json, so not a model folder; give the folder that holds it")
    options, settings = _settings(folder, transformer) if modules else ({}, {})
    unread = _unread(TRANSFORMER_FILES[0], options, "token_embeddings")
    unread += _unread(MODEL_SETTINGS_FILE, settings)
    for module in modules[1:]:
        unread += _unread(f"{module.folder.name}/config.json", module.config)
    if len({module.name for module in modules}) < len(modules):
        unread.append("modules.json: two modules of one name")
    return ModelFolder(folder, transformer, _config(transformer), options, modules[1:], settings, unread)


@contextmanager
def opening(place: Path | str, what: str, way_out: str = DOWNLOAD) -> Iterator[None]:
    """The border to the libraries that open weights and tokenizers: torch, transformers, tokenizers,
    safetensors.

    Raises UserError for whatever they raise but for want of memory: it is about the files, and their
    exceptions have no common class.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or wants_memory(error):
            raise
        advice = INSTALL if isinstance(error, ImportError) else way_out
        raise UserError(f"{place}: {what}: {_explained(error, place, advice)}") from error


def _explained(error: Exception, place: Path | str, way_out: str) -> str:
    """The fact and its way out: the first line of an error, or what it means where that leads astray."""
    for path in sorted(Path(place).rglob("*")) or [Path(place)]:
        small = path.is_file() and path.stat().st_size < 1_000
        if small and path.read_bytes().startswith(files.LFS_POINTER.encode()):
            return f"{path.name} is a pointer of Git LFS in place of the file; fetch it with git lfs pull"
    for part, meaning in MISLEADING.items():
        if part in str(error):
            return meaning
    if isinstance(error, KeyError):
        return f"config.json names {error}, which transformers does not know; correct config.json"
    return f"{first_line(str(error).strip() or type(error).__name__)}; {way_out}"


# A part of what a library says -> what it means, and the way out.
MISLEADING = {
    "ignore_mismatched_sizes": "the sizes that config.json names are not those of the weights; correct "
    f"config.json, or {DOWNLOAD}",
    "weights_only": "it holds Python objects beside tensors, which are never loaded; save the weights as "
    "model.safetensors",
}


def check_architecture(opened: ModelFolder, trust_remote_code: bool) -> None:
    """Raise UserError for an architecture that transformers does not know and whose own code may not run."""
    kind = str(opened.config.get("model_type"))
    if trust_remote_code or kind in CONFIG_MAPPING:
        return
    fact = f"transformers {transformers.__version__} does not know its architecture"
    way_out = ELSEWHERE
    if "auto_map" in opened.config:
        fact = "its architecture needs the Python code that comes with it (auto_map)"
        way_out = "read that code, and allow it with --trust-remote-code"
    raise UserError(f"{opened.transformer / 'config.json'}: model_type {kind!r}: {fact}; {way_out}")


def check_pooling(opened: ModelFolder, pooling: str | None, source: str, option: str) -> None:
    """Raise UserError for a plain model without a pooling, and for one that is given to another model;
    `option` is what gives it."""
    if not opened.chain and pooling is None:
        raise UserError(
            f"{source}: a plain model does not define its pooling; add {option} (mean, cls, cls_pooler, max "
            "or last)"
        )
    if opened.chain and pooling is not None:
        raise UserError(f"{source}: a sentence-transformers model brings its own pooling; leave {option} out")


def _modules(folder: Path) -> list[Module]:
    """The modules of modules.json; [] where there is no such file. Raises UserError for a chain other than a
    Transformer, one Pooling, then Dense, then Normalize, with Dropout anywhere."""
    place = folder / "modules.json"
    if not place.exists():
        return []
    content = {"modules": files.read_json(place, DOWNLOAD)}
    modules = []
    for number, entry in enumerate(validated(_Modules, content, f"{place}: ", DOWNLOAD).modules):
        library = entry.type
        path = entry.path
        kind = library.rsplit(".", 1)[-1]
        fact = ""
        if files.leaves_folder(path):
            fact = f"has a path outside the model's folder ({path!r})"
        elif not library.startswith("sentence_transformers."):
            fact = f"is of another library ({library}), whose code does not run here"
        if fact:
            raise UserError(f"{place}: module {number} {fact}; {ELSEWHERE}")
        modules.append(Module(entry.name or str(number), kind, folder / path))
    kinds = [module.kind for module in modules]
    order = " ".join(kind for kind in kinds if kind != "Dropout")
    if not re.fullmatch("Transformer( Pooling( Dense)*( Normalize)*)?", order):
        raise UserError(
            f"{place}: the modules {', '.join(kinds)} in this order; supported are a Transformer, one "
            f"Pooling, then Dense, then Normalize, and Dropout anywhere; {ELSEWHERE}"
        )
    # the settings of the transformer stand in other files
    return modules[:1] + [module._replace(config=_module_settings(module)) for module in modules[1:]]


def _module_settings(module: Module) -> Json:
    place = module.folder / "config.json"
    if not place.exists() and module.kind in ("Pooling", "Dense"):
        raise UserError(f"{place}: not there, and modules.json names it; {DOWNLOAD}")
    return _object(place)


def _pooling(name: str, module: Module) -> str:
    """Our name of a pooling. Raises UserError for one that is not known here."""
    if name not in POOLING_NAMES:
        fact = unknown_name("pooling", name, POOLING_NAMES)
        raise UserError(f"{module.folder / 'config.json'}: {fact}; {ELSEWHERE}")
    return POOLING_NAMES[name]


def _object(place: Path) -> Json:
    """A file of settings, {} where there is none."""
    return files.read_json_object(place, DOWNLOAD) if place.exists() else {}


def _unread(name: str, config: Json, output: str = "sentence_embedding") -> list[str]:
    """The settings in a file that are not read here and may change embeddings. output: of its module."""
    expected = {**EXPECTED, "module_output_name": (output,)}
    return [
        f"{name}: {key}: {json.dumps(value)[:100]}"
        for key, value in config.items()
        if key not in READ and value and value not in expected.get(key, ())
    ]


def _settings(folder: Path, transformer: Path) -> tuple[Json, Json]:
    """The settings of the Transformer module and of the whole model, those that are read checked."""
    options = next(filter(None, (_object(transformer / name) for name in TRANSFORMER_FILES)), {})
    place = folder / MODEL_SETTINGS_FILE
    settings = _object(place)
    named = validated(_Settings, {**options, **settings}, f"{place}: ", DOWNLOAD)
    prompts = {"query", "document", *(named.prompts or {})}  # the two are there in any model, and empty
    default = named.default_prompt_name
    if default is not None and default not in prompts:
        fact = unknown_name("prompt", default, prompts)
        raise UserError(f"{place}: default_prompt_name: {fact}; {DOWNLOAD}")
    return options, settings


def _config(transformer: Path) -> Json:
    """config.json with its architecture's defaults. Raises UserError for one that would not embed as it
    says."""
    place = transformer / "config.json"
    config = files.read_json_object(place, DOWNLOAD)
    with opening(place, "settings that do not fit each other", "correct them, or download it again"):
        if quantized := config.get("quantization_config"):
            method = dict(quantized).get("quant_method", "another library")
            raise UserError(
                f"{place}: quantization_config: weights quantized by {method}, which do not open here; give "
                "the model as it was before it was quantized"
            )
        if (kind := str(config.get("model_type"))) in CONFIG_MAPPING:
            config = {**CONFIG_MAPPING[kind]().to_dict(), **config}
        if config.get("attention_type") == "block_sparse":  # BigBird's
            raise UserError(
                f"{place}: attention_type: block_sparse, which transformers gives up at the first short "
                "text; set it to original_full"
            )
        return config
