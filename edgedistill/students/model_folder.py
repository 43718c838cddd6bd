"""The settings of a model folder, as sentence-transformers reads them; one that is not honoured here is
refused by name."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import transformers
from transformers import CONFIG_MAPPING
from transformers.utils.versions import require_version

from edgedistill import files
from edgedistill.errors import UserError, first_line, unknown_name, wants_memory

ELSEWHERE = "embed with sentence-transformers, and give the file as teacher.embeddings"
INSTALL = "install what it names, or give a model that opens without"
TEACH = "a bundle is a graph, so teach a student with it instead (edgedistill train)"
DOWNLOAD = "download the whole model again"
CHAIN = (
    "Transformer",
    "Pooling",
    "Dense",
    "Normalize",
    "Dropout",
)  # sentence-transformers' modules that are read here
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
OTHER_MODULES = {  # what a first module of another kind is, and the way out
    "StaticEmbedding": "a table of static embeddings (StaticEmbedding, model2vec), not an encoder; teach a "
    "`kind: static` student",
    "Router": "several encoders behind a Router; give the folder of the one that you need",
    "Asym": "several encoders behind an Asym; give the folder of the one that you need",
    "WordEmbeddings": f"word embeddings (WordEmbeddings), which are no encoder; {ELSEWHERE}",
    "BoW": f"a bag of words (BoW), which is no encoder; {ELSEWHERE}",
    "CLIPModel": f"a model of images and texts (CLIPModel); {ELSEWHERE}",
}

Accepts = Callable[[Any], bool]


def _anything(value: Any) -> bool:
    return True


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _unset(value: Any) -> bool:
    return value in (None, {}, [], "")


def _size_or_unset(value: Any) -> bool:
    return value is None or _size(value)


def _one_of(*values: Any) -> Accepts:
    return lambda value: value in values


def _only(*keys: str) -> Accepts:
    """Options for transformers that do not change embeddings; the first six are replaced by
    sentence-transformers' own."""
    harmless = {"subfolder", "token", "cache_dir", "revision", "local_files_only", "trust_remote_code", *keys}
    return lambda value: value is None or (isinstance(value, dict) and value.keys() <= harmless)


def _text_only(value: Any) -> bool:
    """Whether a modality_config reads texts by the model's `forward`, without a chat template."""
    outputs = ("last_hidden_state", ["last_hidden_state"])
    return value in [{"text": {"method": "forward", "method_output_name": name}} for name in outputs]


def _pooling_mode(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in POOLING_NAMES for name in names)


def _prompts(value: Any) -> bool:
    texts = value.values() if isinstance(value, dict) else [0] * (value is not None)
    return all(text is None or isinstance(text, str) for text in texts)


_ON_EMBEDDING = _one_of("sentence_embedding", None)
_MODEL_OPTIONS = _only(
    *"torch_dtype dtype attn_implementation device_map low_cpu_mem_usage add_pooling_layer".split()
)
_TOKENIZER_OPTIONS = _only("use_fast", "model_max_length")


def _tokenizer_options(value: Any) -> bool:
    return _TOKENIZER_OPTIONS(value) and _size((value or {}).get("model_max_length", 1))


# Every setting that sentence-transformers has for a module, and the values that are read here.
SETTINGS: dict[str, dict[str, Accepts]] = {
    "Transformer": {
        "max_seq_length": _size_or_unset,
        "do_lower_case": _one_of(True, False, None),
        "transformer_task": _one_of("feature-extraction"),
        "modality_config": _text_only,
        "module_output_name": _one_of("token_embeddings"),
        "processing_kwargs": _unset,
        "unpad_inputs": _anything,  # the same arithmetic without padding
        **dict.fromkeys(
            ("query_length", "document_length", "query_expansion", "tokenizer_name_or_path", "cache_dir"),
            _unset,
        ),
        **dict.fromkeys(("model_args", "model_kwargs"), _MODEL_OPTIONS),
        **dict.fromkeys(("tokenizer_args", "processor_kwargs"), _tokenizer_options),
        **dict.fromkeys(("config_args", "config_kwargs"), _only("use_cache")),
    },
    "Pooling": {
        **dict.fromkeys(
            ("embedding_dimension", "word_embedding_dimension"), _anything
        ),  # the tokens have their width
        "pooling_mode": _pooling_mode,
        "include_prompt": _flag,
        **dict.fromkeys(POOLINGS, _one_of(True, False, None)),
    },
    "Dense": {
        "in_features": _size,
        "out_features": _size,
        "bias": _flag,
        "activation_function": _one_of(*ACTIVATIONS),
        "module_input_name": _one_of("sentence_embedding"),
        "module_output_name": _ON_EMBEDDING,
        "use_residual": _one_of(False),
    },
    "Normalize": {"module_input_name": _one_of("sentence_embedding"), "module_output_name": _ON_EMBEDDING},
    "Dropout": {"dropout": _anything},  # nothing is dropped when it embeds
}
MODEL_SETTINGS: dict[str, Accepts] = {  # of config_sentence_transformers.json; the library ignores others
    "model_type": _one_of("SentenceTransformer"),
    "prompts": _prompts,
    "default_prompt_name": lambda value: value is None or isinstance(value, str),
    "truncate_dim": _size_or_unset,
}
MODEL_SETTINGS_FILE = "config_sentence_transformers.json"


class Module(NamedTuple):
    """One module behind the transformer: its kind, one of CHAIN, its folder and its checked settings."""

    kind: str
    folder: Path
    config: dict[str, Any]


@dataclass(frozen=True)
class ModelFolder:
    """A model folder whose settings have been checked; nothing of its weights and tokenizer is open.

    `transformer` is the folder of the transformer inside it, and `config` its config.json with its
    architecture's defaults. `options` are the settings of the Transformer module, `chain` holds the modules
    behind it, none for a plain model, and `settings` is config_sentence_transformers.json. Options and
    settings are {} without a modules.json: sentence-transformers reads neither.
    """

    folder: Path
    transformer: Path
    config: dict[str, Any]
    options: dict[str, Any]
    chain: list[Module]
    settings: dict[str, Any]

    @property
    def poolings(self) -> list[str]:
        """Our names of its poolings, in the order in which they are joined; [] for a plain model."""
        for module in self.chain:
            if module.kind == "Pooling":
                named = module.config.get("pooling_mode")
                on = [name for flag, (name, _) in POOLINGS.items() if module.config.get(flag)] or ["mean"]
                names = on if named is None else named
                return [POOLING_NAMES[name] for name in ([names] if isinstance(names, str) else names)]
        return []

    @property
    def prompts(self) -> dict[str, str]:
        """Its named prompts."""
        return {name: text or "" for name, text in (self.settings.get("prompts") or {}).items()}

    @property
    def default_prompt(self) -> str:
        """The text that it puts before every text; perhaps none."""
        return self.prompts.get(self.settings.get("default_prompt_name") or "", "")

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
        way_out = "give a folder, packaged:NAME, or a hub id with a revision"
        raise UserError(f"{folder}: no such model folder; {way_out}")
    modules = _modules(folder)
    transformer = folder / modules[0]["path"] if modules else folder
    for place in dict.fromkeys((folder, transformer)):
        if (place / "adapter_config.json").exists():
            adapter = files.read_json_object(place / "adapter_config.json", DOWNLOAD)
            fact = f"an adapter (LoRA) of {adapter.get('base_model_name_or_path')!r}, not merged into a model"
            way_out = "merge it with peft (merge_and_unload), save that model, and give its folder"
            raise UserError(f"{place}: adapter_config.json: {fact}; {way_out}")
    if not (transformer / "config.json").exists():
        raise UserError(f"{folder}: no config.json, so not a model folder; give the folder that holds it")
    options = _options(transformer) if modules else {}
    config = _config(transformer, options)
    _check_shards(transformer)
    _check_marks(transformer)
    return ModelFolder(
        folder,
        transformer,
        config,
        options,
        _chain(folder, modules[1:]),
        _settings(folder) if modules else {},
    )


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
        fact, advice = _explained(error, place) or (
            first_line(str(error).strip() or type(error).__name__),
            way_out,
        )
        if isinstance(error, ImportError):
            advice = INSTALL
        raise UserError(f"{place}: {what}: {fact}; {advice}") from error


def _explained(error: Exception, place: Path | str) -> tuple[str, str] | None:
    """(fact, way out) where a library's own message leads astray; None where its first line serves."""
    found = sorted(Path(place).rglob("*")) if Path(place).is_dir() else [Path(place)]
    pointer = next((path.name for path in found if path.is_file() and _is_lfs_pointer(path)), None)
    if pointer is not None:
        return f"{pointer} is a pointer of Git LFS in place of the file", "fetch it with git lfs pull"
    if "ignore_mismatched_sizes" in str(error):
        return (
            "the sizes that config.json names are not those of the weights",
            "correct config.json, or " + DOWNLOAD,
        )
    if "weights_only" in str(error):
        return (
            "it holds Python objects beside tensors, which are never loaded",
            "save the weights as model.safetensors",
        )
    if isinstance(error, KeyError):
        return f"config.json names {error}, which transformers does not know", "correct config.json"
    return None


def _is_lfs_pointer(path: Path) -> bool:
    return path.stat().st_size < 1_000 and path.read_bytes().startswith(files.LFS_POINTER.encode())


def check_architecture(opened: ModelFolder, trust_remote_code: bool) -> None:
    """Raise UserError for an architecture that transformers does not know and whose own code may not run."""
    kind = str(opened.config.get("model_type"))
    if trust_remote_code or kind in CONFIG_MAPPING:
        return
    if "auto_map" in opened.config:
        fact = f"its architecture (model_type {kind!r}) needs the Python code that comes with it (auto_map)"
        raise UserError(f"{opened.folder}: {fact}; read that code, and allow it with --trust-remote-code")
    elif kind == "None":
        way_out = "add the one of its architecture, such as bert"
        raise UserError(f"{opened.transformer / 'config.json'}: no model_type; {way_out}")
    else:
        fact = f"transformers {transformers.__version__} does not know its architecture (model_type {kind!r})"
    raise UserError(f"{opened.folder}: {fact}; {ELSEWHERE}")


def _modules(folder: Path) -> list[dict[str, Any]]:
    """The entries of modules.json, each {type, path, …}, its path inside the folder; [] where there is no
    such file."""
    place = folder / "modules.json"
    entries = files.read_json(place, DOWNLOAD) if place.exists() else []
    named = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if not named or not all(isinstance(entry.get(key), str) for entry in entries for key in ("type", "path")):
        raise UserError(f"{place}: not a list of modules, each with `type` and `path`; {DOWNLOAD}")
    if place.exists() and not entries:
        raise UserError(f"{place}: no modules; {DOWNLOAD}")
    for at, entry in enumerate(entries):
        kind = entry["type"].rsplit(".", 1)[-1]
        if _leaves(entry["path"]):
            fact = f"module {at} has a path outside the model's folder ({entry['path']!r})"
            raise UserError(f"{place}: {fact}; correct the path")
        if not entry["type"].startswith("sentence_transformers."):
            fact = f"module {at} is of another library ({entry['type']}), whose code does not run here"
            raise UserError(f"{place}: {fact}; {ELSEWHERE}")
        if at == 0 and kind in OTHER_MODULES:
            raise UserError(f"{folder}: {OTHER_MODULES[kind]}")
        if kind not in CHAIN or (at == 0) != (kind == "Transformer"):
            fact = (
                f"module {at} is {kind}; supported are a Transformer, Pooling, and Dense, Normalize, "
                "Dropout behind"
            )
            raise UserError(f"{place}: {fact}; {ELSEWHERE}")
    if len({str(entry.get("name", f"module {at}")) for at, entry in enumerate(entries)}) < len(entries):
        fact = "two modules of one name, of which sentence-transformers drops one"
        raise UserError(f"{place}: {fact}; give each its own name")
    return entries


def _leaves(path: str) -> bool:
    """Whether a relative path would leave its folder, by the syntax of any system."""
    parts = PureWindowsPath(path)
    return bool(parts.anchor) or ".." in parts.parts or "\0" in path


def _chain(folder: Path, entries: list[dict[str, Any]]) -> list[Module]:
    """The modules behind the transformer: one Pooling first, no Dense behind Normalize."""
    kinds = [entry["type"].rsplit(".", 1)[-1] for entry in entries]
    order = [kind for kind in kinds if kind != "Dropout"]
    first_only = order[:1] == ["Pooling"] and order.count("Pooling") == 1
    if order and (not first_only or ("Normalize", "Dense") in pairwise(order)):
        fact = (
            f"the modules {', '.join(kinds)} in this order; supported is one Pooling, then Dense, then "
            "Normalize"
        )
        raise UserError(f"{folder / 'modules.json'}: {fact}; {ELSEWHERE}")
    found = []
    for kind, entry in zip(kinds, entries, strict=True):
        inside = folder / entry["path"]
        place = inside / "config.json"
        if not place.exists() and kind in ("Pooling", "Dense"):
            raise UserError(f"{place}: not there, and modules.json names it; {DOWNLOAD}")
        found.append(Module(kind, inside, _checked(place, SETTINGS[kind])))
    return found


def _checked(place: Path, known: Mapping[str, Accepts], strict: bool = True) -> dict[str, Any]:
    """A file of settings, {} where there is none. Raises UserError for a value that is not read here, and,
    if `strict`, for a setting that is not known."""
    config = files.read_json_object(place, DOWNLOAD) if place.exists() else {}
    for key, value in config.items():
        if key not in known:
            if strict:
                raise UserError(f"{place}: {unknown_name('setting', key, known)}; remove it, or {ELSEWHERE}")
        elif not known[key](value):
            raise UserError(f"{place}: {key}: {json.dumps(value)[:200]} is not supported here; {ELSEWHERE}")
    return config


def _options(transformer: Path) -> dict[str, Any]:
    found = (_checked(transformer / name, SETTINGS["Transformer"]) for name in TRANSFORMER_FILES)
    return next((options for options in found if options), {})


def _config(transformer: Path, options: dict[str, Any]) -> dict[str, Any]:
    """config.json with its architecture's defaults. Raises UserError for one that would not embed as it
    says."""
    place = transformer / "config.json"
    config = files.read_json_object(place, DOWNLOAD)
    with opening(place, "settings that do not fit each other", "correct them, or download it again"):
        kind = str(config.get("model_type"))
        if kind == "model2vec" or "StaticModel" in (config.get("architectures") or []):
            raise UserError(f"{place.parent}: {OTHER_MODULES['StaticEmbedding']}")
        if config.get("quantization_config"):
            method = dict(config["quantization_config"]).get("quant_method", "another library")
            fact = f"quantization_config: weights quantized by {method}, which do not open here"
            raise UserError(f"{place}: {fact}; give the model as it was before it was quantized")
        if kind in CONFIG_MAPPING:
            config = {**CONFIG_MAPPING[kind]().to_dict(), **config}
        if kind == "big_bird" and config["attention_type"] == "block_sparse":
            # transformers' attention is full up to this length
            full = (5 + 2 * int(config["num_random_blocks"])) * int(config["block_size"])
            if (options.get("max_seq_length") or full + 1) > full:
                fact = "attention_type: block_sparse, which transformers gives up at the first short text"
                raise UserError(
                    f"{place}: {fact}; set it to original_full, or max_seq_length to at most {full}"
                )
        return config


def _check_marks(transformer: Path) -> None:
    """Raise UserError for a byte order mark in a file that transformers itself reads."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        place = transformer / name
        if place.exists() and place.read_bytes().startswith(BOM_UTF8):
            fact = "begins with a byte order mark, which transformers does not read"
            raise UserError(f"{place}: {fact}; save it as UTF-8 without")


def _check_shards(transformer: Path) -> None:
    """Raise UserError for an index of weights that names a file outside its folder."""
    for name in WEIGHTS:
        place = transformer / name
        if name.endswith(".index.json") and place.exists():
            shards = files.read_json_object(place, DOWNLOAD).get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
                raise UserError(f"{place}: no weight_map; {DOWNLOAD}")
            for shard in set(shards.values()):
                if _leaves(shard):
                    fact = f"names a path outside the model's folder ({shard!r})"
                    raise UserError(f"{place}: {fact}; correct the path")
                if not (transformer / shard).exists():
                    raise UserError(f"{place}: names {shard}, which is not there; {DOWNLOAD}")


def _settings(folder: Path) -> dict[str, Any]:
    place = folder / MODEL_SETTINGS_FILE
    settings = _checked(place, MODEL_SETTINGS, strict=False)
    named = settings.get("default_prompt_name")
    known = {
        "query",
        "document",
        *(settings.get("prompts") or {}),
    }  # the two are there in any model, and empty
    if named is not None and named not in known:
        raise UserError(f"{place}: default_prompt_name: {unknown_name('prompt', named, known)}")
    with opening(place, "requirements", "install what it names, or remove `requirements` there"):
        for package, asked in dict(settings.get("requirements") or {}).items():
            version = asked.get("specifier", "") if isinstance(asked, dict) else asked
            require_version(f"{'torch' if package == 'pytorch' else package}{version}")
    return settings
