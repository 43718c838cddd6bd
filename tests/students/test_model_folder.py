"""What a model folder says: honoured as sentence-transformers does, in our files for it too, or refused by
the setting's name."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer, library_files, model_source
from edgedistill.runtime import bundle
from edgedistill.runtime.trust import graph_check
from edgedistill.students import graph, model_folder
from edgedistill.teacher.encoder import TeacherEncoder
from tests.conftest import World

EMBED = Path(__file__).parents[2] / "export" / "python" / "embed.py"
TEXTS = [
    "The Cat eats a RED apple",
    "a letter",
    "the dog watches the garden wall. " * 12 + "Our Doctor finds İstanbul",
]
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
OWN = "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"
FLAGS = "1_Pooling/config.json"
Change = Callable[[Path], Any]


@pytest.fixture(scope="module")
def cased(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny teacher with a tokenizer that keeps capitals, which it does not know."""
    folder = tmp_path_factory.mktemp("cased") / "model"
    shutil.copytree(world.teacher, folder)
    raw = files.read_json(folder / "tokenizer.json")
    edit("tokenizer.json", normalizer={**raw["normalizer"], "lowercase": False, "strip_accents": False})(
        folder
    )
    return folder


@pytest.fixture
def folder(cased: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cased, tmp_path / "model"))


def edit(name: str, **values: Any) -> Change:
    def change(folder: Path):
        before = files.read_json(folder / name) if (folder / name).exists() else {}
        files.write_json(folder / name, {**before, **values})

    return change


def write(name: str, value: Any) -> Change:
    """value: JSON, or a file's text or bytes."""

    def change(folder: Path):
        (folder / name).parent.mkdir(exist_ok=True)
        text = value if isinstance(value, bytes | str) else json.dumps(value)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def chain(*kinds: str) -> Change:
    """modules.json: `Kind`, or `a.type.Kind`, of sentence_transformers otherwise; in folders named after kind
    and place."""
    entries = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind.rpartition('.')[2]}" if at else "",
            "type": kind if "." in kind else f"{ST}.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]
    return write("modules.json", entries)


ST = "sentence_transformers.models"


def all_of(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def dense(width: int, dims: int, at: int = 2, **values: Any) -> Change:
    """A Dense layer of seeded weights in its folder."""

    def change(folder: Path):
        config = {
            "in_features": width,
            "out_features": dims,
            "bias": True,
            "activation_function": TANH,
            **values,
        }
        write(f"{at}_Dense/config.json", config)(folder)
        draw = torch.Generator().manual_seed(at)
        weights = {
            "linear.weight": torch.randn(dims, width, generator=draw),
            "linear.bias": torch.randn(dims, generator=draw),
        }
        save_file(weights, folder / f"{at}_Dense/model.safetensors")

    return change


def renamed(name: str, limit: int = 16) -> Change:
    """The limit under another of the seven names, which an empty file before it does not hide."""
    return all_of(write(OWN, {}), write(f"sentence_{name}_config.json", {"max_seq_length": limit}))


def in_a_folder(folder: Path):
    """The transformer in a folder of its own, as sentence-transformers 1 saved it."""
    (folder / "0_Transformer").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file() and path.name != "modules.json"]:
        path.rename(folder / "0_Transformer" / path.name)
    entries = files.read_json(folder / "modules.json")
    write("modules.json", [{**entries[0], "path": "0_Transformer"}, *entries[1:]])(folder)


def with_mark(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())


def no_limit(folder: Path):
    """null, and no limit of the tokenizer: that of the positions."""
    edit(OWN, max_seq_length=None)(folder)
    edit("tokenizer_config.json", model_max_length=10**30)(folder)


NO_FLAG = dict.fromkeys(model_folder.POOLINGS, False)
IN_FILE_ORDER = {
    "word_embedding_dimension": 32,
    "pooling_mode_lasttoken": True,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": True,
}
HONOURED: dict[str, Change] = {
    "do_lower_case": edit(OWN, do_lower_case=True),
    "do_lower_case, a class with a normalizer of its own": all_of(
        edit(OWN, do_lower_case=True),
        edit("tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=False),
    ),
    "a limit above the tokenizer's": all_of(
        edit(OWN, max_seq_length=40), edit("tokenizer_config.json", model_max_length=16)
    ),
    "no limit": no_limit,
    "the tokenizer's limit": all_of(
        edit(OWN, max_seq_length=None), edit("tokenizer_config.json", model_max_length=20)
    ),
    "model_max_length in tokenizer_args": edit(OWN, tokenizer_args={"model_max_length": 12}),
    **{name: renamed(name) for name in ("roberta", "xlm-roberta", "xlnet")},
    "the first of two names": all_of(
        write("sentence_roberta_config.json", {"max_seq_length": 8}), edit(OWN, max_seq_length=30)
    ),
    "a folder of its own": in_a_folder,
    "flags in another order": write(FLAGS, IN_FILE_ORDER),
    "a list of poolings": write(FLAGS, {"embedding_dimension": 32, "pooling_mode": ["mean", "cls"]}),
    "each pooling": write(FLAGS, {"word_embedding_dimension": 32, **dict.fromkeys(NO_FLAG, True)}),
    "no flag": write(FLAGS, {"word_embedding_dimension": 32, **NO_FLAG}),
    "poolings and Dense": all_of(
        chain("Transformer", "Pooling", "Dense", "Normalize"), write(FLAGS, IN_FILE_ORDER), dense(96, 20)
    ),
    "two Dense layers": all_of(
        chain("Transformer", "Pooling", "Dense", "Dense"),
        dense(32, 20),
        dense(20, 8, 3, activation_function=IDENTITY),
    ),
    "Dropout": chain("Transformer", "Pooling", "Dropout", "Normalize"),
    "truncate_dim": write(SETTINGS, {"truncate_dim": 10}),
    "a default prompt": write(
        SETTINGS, {"prompts": {"query": "the dog ", "none": None}, "default_prompt_name": "query"}
    ),
    "an empty default prompt": write(SETTINGS, {"prompts": {}, "default_prompt_name": "document"}),
    "model_args without effect": edit(
        OWN, model_args={"torch_dtype": "float32"}, config_args={"trust_remote_code": True}
    ),
    "the settings that version 6 writes": edit(
        OWN,
        transformer_task="feature-extraction",
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        module_output_name="token_embeddings",
        unpad_inputs=False,
    ),
    "padding_side": edit("tokenizer_config.json", padding_side="left"),
    "truncation in tokenizer.json": edit(
        "tokenizer.json",
        truncation={"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0},
    ),
}


def by_sentence_transformers(folder: Path, **options: Any) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    opened = SentenceTransformer(str(folder), device="cpu")
    return np.asarray(opened.encode(TEXTS, normalize_embeddings=True, batch_size=1, **options))


def teacher(folder: Path) -> TeacherEncoder:
    return TeacherEncoder(recipe.Teacher(model=str(folder), dtype="fp32"))


def files_for_sentence_transformers(folder: Path, out: Path) -> Path:
    """What a bundle of the model holds for sentence-transformers, beside the model's own weights in place of
    a graph."""
    with model_source.opened(str(folder)) as run:
        out.mkdir()
        library_files.write(out, run, run.student(), ["fp32"])
    shutil.copy(model_folder.read(folder).transformer / "model.safetensors", out)
    return out


@pytest.mark.parametrize("change", HONOURED.values(), ids=HONOURED)
def test_a_setting_gives_what_sentence_transformers_gives(folder: Path, tmp_path, change: Change):
    change(folder)
    expected = by_sentence_transformers(folder)
    opened = teacher(folder)
    assert np.abs(opened.embed(TEXTS) - expected).max() < 1e-5
    if graph.pools_to_embedding(opened.module) and len(opened.module.dense):
        return  # the graph applies the head to each token, which these weights in its place do not
    again = by_sentence_transformers(files_for_sentence_transformers(folder, tmp_path / "bundle"))
    assert np.abs(again - expected).max() < 1e-5


def test_the_honoured_settings_differ(cased: Path):
    """Without them the model gives something else: the comparison above would notice one that is ignored."""
    ignored = by_sentence_transformers(cased)
    for name in ("do_lower_case", "roberta", "a default prompt", "no flag", "padding_side"):
        folder = cased.with_name(f"with {name}")
        shutil.copytree(cased, folder)
        HONOURED[name](folder)
        same = np.abs(by_sentence_transformers(folder) - ignored).max() < 1e-5
        assert same == (name in ("no flag", "padding_side")), name


def test_left_truncation_is_the_teachers_and_its_bundles(folder: Path, tmp_path):
    before = teacher(folder)
    edit("tokenizer_config.json", truncation_side="left")(folder)
    assert np.abs(teacher(folder).embed(TEXTS) - before.embed(TEXTS)).max() > 1e-3
    assert np.abs(teacher(folder).embed(TEXTS) - by_sentence_transformers(folder)).max() < 1e-5
    bundle_writer.export(folder, ["fp32"], tmp_path / "b", print)
    opened = bundle.load(tmp_path / "b")
    assert np.abs(opened.encode(TEXTS) - by_sentence_transformers(folder)).max() < 1e-5
    smallest = runpy.run_path(str(EMBED))["Bundle"](tmp_path / "b", "fp32")
    assert np.abs(np.stack([smallest(text) for text in TEXTS]) - opened.encode(TEXTS)).max() < 1e-5


def in_roles(folder: Path) -> list[np.ndarray]:
    """What the library gives for texts, for queries and for documents."""
    from sentence_transformers import SentenceTransformer

    opened = SentenceTransformer(str(folder), device="cpu")
    encoders = (opened.encode, opened.encode_query, opened.encode_document)
    return [np.asarray(encode(TEXTS, normalize_embeddings=True, batch_size=1)) for encode in encoders]


QUERY, DOCUMENT, OTHER = "the dog ", "a child ", "the cat "
# (settings, prompts of text, query and document); the library does the same but for the last two: it never
# looks for `passage`, and puts nothing before queries and documents where it has a prompt for all texts alone
ROLES: list[tuple[dict[str, Any], tuple[str, str, str]]] = [
    ({"prompts": {"query": QUERY, "document": DOCUMENT}}, ("", QUERY, DOCUMENT)),
    ({"prompts": {"query": QUERY}}, ("", QUERY, "")),
    ({"prompts": {"query": QUERY, "document": None, "passage": DOCUMENT}}, ("", QUERY, "")),
    (
        {"prompts": {"query": "", "document": DOCUMENT, "x": OTHER}, "default_prompt_name": "x"},
        (OTHER, "", DOCUMENT),
    ),
    ({"prompts": {"query": QUERY, "passage": DOCUMENT}}, ("", QUERY, DOCUMENT)),
    ({"prompts": {"x": OTHER}, "default_prompt_name": "x"}, (OTHER, OTHER, OTHER)),
]


@pytest.mark.parametrize("case", range(len(ROLES)))
def test_prompts_of_queries_and_documents_reach_the_bundle(folder: Path, tmp_path, case: int):
    settings, prompts = ROLES[case]
    unprompted = teacher(folder)
    write(SETTINGS, settings)(folder)
    expected = [unprompted.embed([prompt + text for text in TEXTS]) for prompt in prompts]
    assert np.abs(expected[1] - expected[2]).max() > 1e-3 or case == 5, "or a lost prompt would go unnoticed"
    bundle_writer.export(folder, ["fp32"], tmp_path / "b", print)
    opened = bundle.load(tmp_path / "b")
    found = [opened.encode(TEXTS), opened.encode_query(TEXTS), opened.encode_document(TEXTS)]
    libraries = [in_roles(files_for_sentence_transformers(folder, tmp_path / "st"))]
    if case < 4:
        libraries.append(in_roles(folder))
    of_teacher = [teacher(folder).in_role(role).embed(TEXTS) for role in ("text", "query", "document")]
    for rows in (found, of_teacher, *libraries):
        assert np.abs(np.array(rows) - np.array(expected)).max() < 1e-5
    assert opened.prompts == prompts
    for name, prompt in zip(("query_prompt", "document_prompt"), prompts[1:], strict=True):
        assert opened.manifest.get(name) == (None if prompt == prompts[0] else prompt)


@pytest.mark.parametrize(("unit", "written"), [(True, "manhattan"), (False, "cosine")])
def test_export_reports_a_ranking_that_unit_length_changes(folder: Path, tmp_path, unit: bool, written: str):
    write(SETTINGS, {"similarity_fn_name": "manhattan"})(folder)
    chain("Transformer", "Pooling", *(["Normalize"] if unit else []))(folder)
    log: list[str] = []
    bundle_writer.export(folder, ["fp32"], tmp_path / "b", log.append)
    assert files.read_json(tmp_path / "b" / SETTINGS)["similarity_fn_name"] == written
    assert any(
        "compared by manhattan (similarity_fn_name); the bundle's have unit length" in line for line in log
    ) == (not unit)


def path_of_pooling(path: str) -> Change:
    return write(
        "modules.json",
        [
            {"name": "0", "path": "", "type": f"{ST}.Transformer"},
            {"name": "1", "path": path, "type": f"{ST}.Pooling"},
        ],
    )


def big_bird(folder: Path):
    sizes = {
        "vocab_size": 200,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    config = transformers.BigBirdConfig(
        **sizes, block_size=4, num_random_blocks=2, max_position_embeddings=64
    )
    transformers.BigBirdModel(config).save_pretrained(folder)


def types_of_one(folder: Path):
    """As `[CLS]:1 $A:1` in a post-processor."""
    pieces = [{"SpecialToken": {"id": "[CLS]", "type_id": 1}}, {"Sequence": {"id": "A", "type_id": 1}}]
    special = {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}
    edit(
        "tokenizer.json",
        post_processor={
            "type": "TemplateProcessing",
            "single": pieces,
            "pair": pieces,
            "special_tokens": special,
        },
    )(folder)
    edit("tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])(folder)


def vocabulary_above(folder: Path):
    raw = files.read_json(folder / "tokenizer.json")
    edit("tokenizer.json", model={**raw["model"], "vocab": {**raw["model"]["vocab"], "penguin": 278}})(folder)
    edit("config.json", vocab_size=278)(folder)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 1\n"
SETTING_FILES = ("config.json", "modules.json", FLAGS, OWN, SETTINGS)
DAMAGED: dict[str, Change] = {
    f"{name} {what}": all_of(write(SETTINGS, {}), write(name, content))
    for name in SETTING_FILES
    for what, content in {
        "a pointer": POINTER,
        "empty": "",
        "HTML": "<!DOCTYPE html>",
        "latin-1": b'{"a": "\xe9"}',
        "a number": "5",
        "deep": "[" * 100_000,
        "cut": '{"a": ',
    }.items()
}
DENSE = chain("Transformer", "Pooling", "Dense")
PADDED = {"text": {"padding": "max_length"}}
# Not read here, and sentence-transformers gives the same embeddings all the same.
SAME: dict[str, Change] = {
    "processing_kwargs": edit(OWN, processing_kwargs=PADDED),
    "query_length": edit(OWN, query_length=8),
    "Dense: rank": all_of(DENSE, dense(32, 4, rank=4)),
    "Normalize: tokens": write("2_Normalize/config.json", {"module_input_name": "token_embeddings"}),
}
REFUSED: dict[str, tuple[Change, str]] = {  # what the refusal names
    **{
        f"{key} {value!r}": (edit(OWN, **{key: value}), key)
        for key, value in {
            "transformer_task": "fill-mask",
            "modality_config": {"message": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "query_expansion": {"length": 8},
            "tokenizer_args": {"truncation_side": "left"},
            "config_args": {"num_hidden_layers": 1},
            "tokenizer_name_or_path": "owner/name",
            "max_seq_length": "64",
            "max_length": 8,
        }.items()
    },
    "a pooling of tomorrow": (edit(FLAGS, pooling_mode_median=True), "pooling_mode_median"),
    "a pooling mode of tomorrow": (edit(FLAGS, pooling_mode="median"), "median"),
    **{
        f"{' '.join(kinds)}": (chain("Transformer", *kinds), f"the modules Transformer, {', '.join(kinds)}")
        for kinds in (
            ("Pooling", "Pooling"),
            ("Dense", "Pooling"),
            ("Pooling", "Normalize", "Dense"),
            ("Normalize",),
        )
    },
    "a Dense of another library": (chain("Transformer", "pylate.models.Dense.Dense"), "pylate.models"),
    "code of its own": (chain("custom_st.Transformer", "Pooling"), "custom_st.Transformer"),
    "LayerNorm": (chain("Transformer", "Pooling", "LayerNorm"), "LayerNorm"),
    **{kind: (chain(kind, "Pooling"), kind) for kind in ("StaticEmbedding", "Router")},
    "no Pooling folder": (lambda folder: shutil.rmtree(folder / "1_Pooling"), "1_Pooling/config.json"),
    "Dense without weights": (
        all_of(DENSE, write("2_Dense/config.json", {"in_features": 32, "out_features": 4})),
        "2_Dense",
    ),
    "Dense of another width": (all_of(DENSE, dense(64, 4)), "2_Dense"),
    "Dense: a key of tomorrow": (all_of(DENSE, dense(32, 4, use_residual=True)), "use_residual"),
    "Dense: another activation": (all_of(DENSE, dense(32, 4, activation_function="os.system")), "os.system"),
    **{
        path: (path_of_pooling(path), "module 1 has a path outside the model's folder")
        for path in ("../x", "/x", "C:\\x")
    },
    "a module without a path": (write("modules.json", [{"type": f"{ST}.Transformer"}]), "modules.json"),
    "an adapter": (write("adapter_config.json", {"base_model_name_or_path": "owner/base"}), "owner/base"),
    "a sparse encoder": (write(SETTINGS, {"model_type": "SparseEncoder"}), "SparseEncoder"),
    "truncate_dim": (write(SETTINGS, {"truncate_dim": -1}), "truncate_dim"),
    "prompts of another form": (write(SETTINGS, {"prompts": ["a"]}), "prompts"),
    "a default prompt that is not there": (write(SETTINGS, {"default_prompt_name": "qury"}), "qury"),
    "requirements": (write(SETTINGS, {"requirements": {"transformers": ">=99"}}), "requirements"),
    "quantized": (edit("config.json", quantization_config={"quant_method": "gptq"}), "gptq"),
    "an architecture of tomorrow": (edit("config.json", model_type="bert2027"), "bert2027"),
    "code in auto_map": (
        edit("config.json", model_type="bert2027", auto_map={"AutoModel": "owner/name--code.Model"}),
        "--trust-remote-code",
    ),
    "model2vec": (edit("config.json", model_type="model2vec"), "model2vec"),
    "BigBird": (big_bird, "block_sparse"),
    "T5": (write("config.json", transformers.T5Config(vocab_size=200).to_dict()), "with a decoder"),
    "a token id above the table": (vocabulary_above, "278"),
    "token types": (types_of_one, "post_processor"),
    "split_special_tokens": (
        edit("tokenizer_config.json", split_special_tokens=True),
        "split_special_tokens",
    ),
    "no unknown token": (
        edit("tokenizer.json", model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[NONE]"}),
        "unknown characters",
    ),
    "another normalizer": (edit("tokenizer.json", normalizer={"type": "NormalizerOfTomorrow"}), "tokenizer"),
    "weights that are a pointer": (write("model.safetensors", POINTER), "git lfs pull"),
    "sizes that are not those of the weights": (edit("config.json", hidden_size=64), "sizes"),
    "an activation that nobody knows": (edit("config.json", hidden_act="xyz"), "xyz"),
    "a mark in config.json": (with_mark("config.json"), "config.json"),
    "no file of settings": (lambda folder: (folder / "config.json").unlink(), "config.json"),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_changes_no_embedding_of_sentence_transformers_is_no_matter(folder: Path, change: Change):
    change(folder)
    assert np.abs(teacher(folder).embed(TEXTS) - by_sentence_transformers(folder)).max() < 1e-5


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_honoured_is_refused_by_name(folder: Path, change: Change, says: str):
    change(folder)
    with pytest.raises(UserError) as caught:
        teacher(folder)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(str(folder)) and says in line and "; " in line


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named(request, folder: Path, change: Change):
    change(folder)
    name = request.node.callspec.id.split(" ")[0]
    with pytest.raises(UserError, match=rf"^{folder / name}: [^;\n]+; download the whole model again$"):
        teacher(folder)


@pytest.mark.parametrize("name", ["modules.json", FLAGS, OWN, SETTINGS])
def test_a_byte_order_mark_is_read(cased: Path, folder: Path, name: str):
    write(SETTINGS, {})(folder)
    with_mark(name)(folder)
    assert np.array_equal(teacher(folder).embed(TEXTS), teacher(cased).embed(TEXTS))


def test_attention_for_another_machine_is_the_same_attention(cased: Path, folder: Path):
    edit("config.json", _attn_implementation="flash_attention_2", attn_implementation="flash_attention_2")(
        folder
    )
    assert np.abs(teacher(folder).embed(TEXTS) - teacher(cased).embed(TEXTS)).max() < 1e-6


@pytest.mark.parametrize(
    "change", ["do_lower_case", "roberta", "a default prompt", "flags in another order", "truncate_dim"]
)
def test_embeddings_are_cached_under_what_was_opened(cased: Path, folder: Path, change: str):
    HONOURED[change](folder)
    assert teacher(folder).identity() != teacher(cased).identity()


UNEXPORTED = {
    "FNet": (
        transformers.FNetConfig,
        "an architecture that cannot be written as a graph: .*; a bundle is a graph, so teach a student",
    ),
    "ConvBert": (
        transformers.ConvBertConfig,
        r".* operators that a bundle may not use \(Conv\); a bundle is a graph, so teach a student",
    ),
}


def test_an_architecture_without_an_embedding_table_is_refused(folder: Path, tmp_path):
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "num_hash_buckets": 64,
    }
    transformers.CanineModel(transformers.CanineConfig(**sizes, max_position_embeddings=64)).save_pretrained(
        folder
    )
    with pytest.raises(UserError, match="^CanineModel: an architecture without one embedding table: "):
        bundle_writer.export(folder, ["fp32"], tmp_path / "b", print)


@pytest.mark.parametrize(("config", "says"), UNEXPORTED.values(), ids=UNEXPORTED)
def test_an_architecture_without_a_graph_is_refused(
    folder: Path, tmp_path, config: Any, says: str, monkeypatch
):
    monkeypatch.setattr(graph_check, "ALLOWED", {each for each in graph_check.ALLOWED if each[1] != "Conv"})
    sizes = {
        "vocab_size": 200,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    transformers.AutoModel.from_config(
        config(**sizes, embedding_size=32, max_position_embeddings=64)
    ).save_pretrained(folder)
    with pytest.raises(UserError, match=f"^{config.__name__.removesuffix('Config')}Model: {says}"):
        bundle_writer.export(folder, ["fp32"], tmp_path / "b", print)
    assert not (tmp_path / "b").exists()
