"""Bundles that a stranger may send: each function breaks a good tiny bundle in one way, all hashes right.

    shutil.copytree(good, folder); OPENING["integer Div by -1"](folder)

`control` writes the plain graph that the others change, so that a refusal of another is about the one thing
that is wrong. A bundle of OPENING is refused when it is opened; one of ENCODING then or at `TEXT`, and gives
no numbers. Refused: an error of ours in one line, within seconds, and no file that the manifest does not name
is read. Needs numpy and onnx, not torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from edgedistill.runtime.manifest import digest

Edit = Callable[[Path], None]
GRAPH = "onnx/model_quantized.onnx"
TEXT = (
    "The cat 日 \U0001f642 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! " * 8
)  # longer than the tiny bundle's 32 tokens
SECRET = "secret.bin"  # lies beside the graph; whoever reads it has read a file that no manifest names
HUGE = 200_000_000_000  # bytes of a sparse file, which takes no room

# The bundle's files, with their hashes


def read(folder: Path, name: str = "manifest.json") -> dict[str, Any]:
    return dict(json.loads((folder / name).read_text(encoding="utf-8")))


def write_manifest(folder: Path, **changes: Any):
    changed = {**read(folder), **changes}
    (folder / "manifest.json").write_text(
        json.dumps({**changed, "digest": digest(changed)}), encoding="utf-8"
    )


def write(folder: Path, name: str, data: bytes):
    """Write a file of the bundle, and its hash into the manifest."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    write_manifest(folder, files={**read(folder)["files"], name: hashlib.sha256(data).hexdigest()})


def write_graph(folder: Path, model: ModelProto | bytes):
    """The bundle's only graph, whatever precision a runner prefers."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    nodes = ModelProto.FromString(data).graph.node
    operators = sorted({f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes})
    entry = {"file": GRAPH, "size_bytes": len(data), "operators": operators, "parity": {"threshold": 0.5}}
    write_manifest(folder, precisions={"int8": {**entry, "sha256": hashlib.sha256(data).hexdigest()}})
    write(folder, GRAPH, data)


# Graphs


def constant(name: str, values: Any, kind: Any = np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(values, kind), name)


def plain(
    folder: Path,
    *nodes: NodeProto,
    constants: tuple[TensorProto, ...] = (),
    output: str = "unit",
    table: Callable[[np.ndarray], Any] = lambda rows: None,
    shape: tuple[Any, ...] = ("batch", None),
) -> ModelProto:
    """Mean of table rows, of unit length. nodes: more of them, after the others; output: which value is the
    embedding."""
    tokens, dims = len(read(folder, "tokenizer.json")["model"]["vocab"]), read(folder)["dims"][0]
    rows = np.random.default_rng(0).normal(size=(tokens + 8, dims)).astype(np.float32)
    table(rows)
    own = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask_3d"]),
        helper.make_node("Mul", ["rows", "mask_3d"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceL2", ["sum"], ["norm"], axes=[-1], keepdims=1),
        helper.make_node("Div", ["sum", "norm"], ["unit"]),
    ]
    end = helper.make_node("Identity", [output], ["sentence_embedding"])
    held = [numpy_helper.from_array(rows, "table"), constant("last", [-1]), constant("one", [1]), *constants]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, shape)]
    graph = helper.make_graph([*own, *nodes, end], "hostile", inputs, outputs, held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def control(folder: Path):
    write_graph(folder, plain(folder))


def graph(
    *nodes: NodeProto,
    constants: tuple[TensorProto, ...] = (),
    edit: Callable[[ModelProto], Any] = lambda model: None,
    **options: Any,
) -> Edit:
    """The plain graph with more nodes, constants, or an edit."""

    def change(folder: Path):
        model = plain(folder, *nodes, constants=constants, **options)
        edit(model)
        write_graph(folder, model)

    return change


def node(kind: str, inputs: str, output: str = "made", domain: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs.split(), output.split(), domain=domain, **attributes)


def used(*nodes: NodeProto, constants: tuple[TensorProto, ...] = (), kind: int = TensorProto.INT64) -> Edit:
    """Nodes whose value `made` is added to the embedding as zero, so that no optimizer drops them."""
    tail = [
        node("Cast", "made", "made_float", to=TensorProto.FLOAT),
        node("ReduceMax", "made_float", "made_one", keepdims=0),
        node("Mul", "made_one zero", "made_zero"),
        node("Add", "unit made_zero", "with_made"),
    ]
    return graph(*nodes, *tail, constants=(*constants, constant("zero", 0, np.float32)), output="with_made")


def outside(name: str, values: tuple[int, ...], location: str = SECRET) -> TensorProto:
    """A float tensor whose data lies in another file."""
    tensor = TensorProto(
        name=name, dims=values, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    return tensor


def with_secret(change: Edit) -> Edit:
    """A file beside the graph that is there and large enough, and another above the bundle's folder."""

    def changed(folder: Path):
        change(folder)
        secret = np.full(4096, 0.125, np.float32).tobytes()
        (folder / GRAPH).with_name(SECRET).write_bytes(secret)

    return changed


def added(*constants: TensorProto) -> Edit:
    """A row of four is added to the first dimensions of the embedding: what lies outside is in the result."""
    width = node("Shape", "unit", "unit_shape")
    tail = [
        width,
        node("ReduceMax", "secret", "top", keepdims=1),
        node("Reshape", "top one", "top_one"),
        node("Add", "unit top_one", "leaks"),
    ]
    return graph(*tail, constants=constants, output="leaks")


def length(number: int, over_long: bool) -> bytes:
    """A varint; over-long: with a byte more than it needs, which protobuf reads all the same."""
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + (bytes([number | 128, 0]) if over_long else bytes([number]))


def external_over_long(folder: Path):
    """The entry's lengths take two bytes where one would do; a search for the usual bytes does not find
    it."""
    entry = b"\x0a" + length(8, True) + b"location" + b"\x12" + length(len(SECRET), True) + SECRET.encode()
    tensor = outside("secret", (4,))
    tensor.ClearField("external_data")
    data = tensor.SerializeToString() + b"\x6a" + length(len(entry), True) + entry
    model = ModelProto.FromString(leaking(folder))
    whole = model.graph.SerializeToString() + b"\x2a" + length(len(data), False) + data
    model.ClearField("graph")
    write_graph(folder, model.SerializeToString() + b"\x3a" + length(len(whole), False) + whole)


def leaking(folder: Path) -> bytes:
    """The graph of `added` without its constant."""
    added()(folder)
    return (folder / GRAPH).read_bytes()


def sparse(name: str) -> SparseTensorProto:
    return SparseTensorProto(values=outside(name, (4,)), indices=constant("at", [0, 1, 2, 3]), dims=[4])


def branch() -> Any:
    return helper.make_graph(
        [node("Identity", "unit", "inner")],
        "inner",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )


def with_function(model: ModelProto):
    function = helper.make_function(
        "", "Gather", ["a", "b"], ["c"], [node("Identity", "a", "c")], [helper.make_opsetid("", 17)]
    )
    model.functions.append(function)


def with_training(model: ModelProto):
    model.training_info.add().algorithm.CopyFrom(branch())


def many_entries(model: ModelProto):
    for at in range(200_000):
        model.metadata_props.add(key=str(at), value="x")


def rank(kind: int, *dims: int | str) -> Callable[[ModelProto], Any]:
    """The declared type of the output."""
    declared = helper.make_tensor_value_info("sentence_embedding", kind, dims)
    return lambda model: model.graph.output[0].CopyFrom(declared)


SHORT = (constant("eight", np.zeros((24, 24)), np.uint8), constant("scales", np.ones(3), np.float32))
LSTM = (constant("w", np.zeros((1, 16, 9)), np.float32), constant("r", np.zeros((1, 16, 4)), np.float32))

GRAPHS: dict[str, Edit] = {
    "external data": with_secret(added(outside("secret", (4,)))),
    "external data, lengths over-long": with_secret(external_over_long),
    "external data above the folder": with_secret(added(outside("secret", (4,), "../../../secret.bin"))),
    "external data, absolute": with_secret(added(outside("secret", (4,), "/etc/passwd"))),
    "external data in a Constant": with_secret(
        graph(
            node("Constant", "", "secret", value=outside("t", (4,))),
            node("Add", "unit secret", "leaks"),
            output="leaks",
        )
    ),
    "external data in a sparse initializer": with_secret(
        graph(edit=lambda m: m.graph.sparse_initializer.append(sparse("secret")))
    ),
    "external data in a sparse Constant": with_secret(
        graph(node("Constant", "", "secret", sparse_value=sparse("t")))
    ),
    "If": graph(
        node("If", "yes", "chosen", then_branch=branch(), else_branch=branch()),
        constants=(constant("yes", True, bool),),
    ),
    "Loop without end": graph(
        node("Loop", "most yes", "", body=branch()),
        constants=(constant("most", 2**62), constant("yes", True, bool)),
    ),
    "a function that replaces Gather": graph(edit=with_function),
    "training_info": graph(edit=with_training),
    "operator of another domain": graph(node("Anything", "unit", domain="mine")),
    "operator that reads a file": graph(
        node("EPContext", "unit", domain="com.microsoft", ep_cache_context="/etc/passwd", embed_mode=0)
    ),
    "operator that no bundle needs": graph(node("RandomNormalLike", "unit")),
    "ConvTranspose": graph(
        node("ConvTranspose", "masked kernel"),
        constants=(constant("kernel", np.ones((1, 1, 1)), np.float32),),
    ),
    "200,000 entries of metadata": graph(edit=many_entries),
    "49,000 nodes": used(
        *[node("Neg", f"n{at}", f"n{at + 1}") for at in range(49_000)],
        node("Neg", "n49000"),
        constants=(constant("n0", 1),),
    ),
    "output of another type": graph(edit=rank(TensorProto.DOUBLE, "batch", "width")),
}


def fills(value: float) -> Callable[[np.ndarray], None]:
    return lambda rows: rows.fill(value)


LONG = node("Gather", "few longest", "found")
TO_ONE = (node("Shape", "input_ids", "sizes"), node("Gather", "sizes one", "longest"))
RUNS: dict[str, Edit] = {  # what only a run shows
    "NaN weights": graph(table=fills(np.nan)),
    "inf weights": graph(table=fills(np.inf)),
    "zero weights": graph(table=fills(0)),
    "NaN that is computed": graph(
        node("Mul", "unit nothing", "none"),
        node("Div", "none nothing", "undefined"),
        constants=(constant("nothing", 0, np.float32),),
        output="undefined",
    ),
    "not of unit length": graph(
        node("Mul", "unit much", "scaled"), constants=(constant("much", 14, np.float32),), output="scaled"
    ),
    "length 1,000,000": graph(output="sum", table=lambda rows: rows.__imul__(1e6)),
    "output too narrow": graph(
        node("Slice", "unit from to last", "narrow"),
        constants=(constant("from", [0]), constant("to", [3])),
        output="narrow",
        shape=None,
    ),
    "output 3-D": graph(output="masked", shape=None),
    "output that is declared 3-D": graph(
        edit=rank(TensorProto.FLOAT, "batch", "sequence", "width"), output="masked"
    ),
    "output a scalar": graph(node("ReduceMax", "unit", "scalar", keepdims=0), output="scalar", shape=None),
    "output without rows": graph(
        node("Slice", "unit from from nought", "none"),
        constants=(constant("from", [0]), constant("nought", [0])),
        output="none",
        shape=None,
    ),
    "output with a row too many": graph(
        node("Concat", "unit unit", "twice", axis=0), output="twice", shape=None
    ),
    "index out of bounds": used(node("Gather", "few input_ids"), constants=(constant("few", [1, 2]),)),
    "fails for long texts only": used(
        *TO_ONE, LONG, node("Identity", "found"), constants=(constant("few", list(range(20))),)
    ),
    "scales too short": used(node("DequantizeLinear", "eight scales", axis=0), constants=SHORT),
    "LSTM weights too small": used(node("LSTM", "rows w r", hidden_size=4), constants=LSTM),
    "Range of 2^62": used(
        node("Range", "start most step"),
        constants=(constant("start", 0), constant("most", 2**62), constant("step", 1)),
    ),
    "ConstantOfShape of 10^12": used(
        node("ConstantOfShape", "much"), constants=(constant("much", [10**6, 10**6]),)
    ),
}

# Tokenizers


def tokenizer(edit: Callable[[dict[str, Any]], Any]) -> Edit:
    def change(folder: Path):
        control(folder)
        changed = read(folder, "tokenizer.json")
        edit(changed)
        write(folder, "tokenizer.json", json.dumps(changed).encode())

    return change


def splits(pattern: str) -> Edit:
    """A pre-tokenizer that splits by a regular expression."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return tokenizer(lambda t: t.update(pre_tokenizer=split))


def replaces(pattern: str) -> Edit:
    replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": " "}
    return tokenizer(lambda t: t.update(normalizer=replace))


def without_unknown(t: dict[str, Any]):
    t["model"]["vocab"].pop("[UNK]")
    t["added_tokens"] = [each for each in t["added_tokens"] if each["content"] != "[UNK]"]


def repeated(json: dict[str, Any]):
    """The text twice, behind each other: more tokens than truncation leaves."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    json["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [text, text],
        "pair": [text, text],
        "special_tokens": {},
    }


def template(number: int) -> Callable[[dict[str, Any]], None]:
    special = {"[CLS]": {"id": "[CLS]", "ids": [number], "tokens": ["[CLS]"]}}
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    made = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": special,
    }
    return lambda t: t.update(post_processor=made)


def unigram(longest: int) -> Callable[[dict[str, Any]], None]:
    """A Unigram vocabulary with tokens of many characters: every position of a text is held against each of
    their beginnings."""
    vocab = [["[UNK]", 0.0], *[["a" * size, -1.0] for size in range(1, longest, max(1, longest // 100))]]
    return lambda t: t.update(
        model={"type": "Unigram", "unk_id": 0, "vocab": vocab},
        pre_tokenizer=None,
        added_tokens=[],
        post_processor=None,
    )


REGEXES = {
    "nested quantifiers": "(a+)+b",
    "nested quantifiers in a lazy group": "(?:a*?)*b",
    "nested quantifiers with bounds": "(a{1,30}){1,30}b",
    "alternatives that overlap": "(a|a|aa)+b",
    "back reference": r"(a*)\1\1\1b",
    "named back reference": r"(?<x>a*)\k<x>\k<x>b",
    "recursion": r"(a|\g<0>)*b",
    "recursion without end": r"(?<x>\g<x>a)",
    "look-ahead x 40": "(?=a*)" * 40 + "b",
    "look-ahead that repeats x 40": "(?=.*a)" * 40 + "b",
    "look-behind": r"(?<=a|aa)(?<!b)a",
    "optional x 40": "a?" * 40 + "a" * 40,
    "star x 40": "a*" * 40 + "b",
    "atomic group": "(?>a+)+b",
    "conditional": "(a)?(?(1)b|c)",
    "callout": "(?{x})a",
    "class of classes": "[a&&[^b&&[^c]]]+b",
    "empty": "",
    "empty x 40": "()" * 40,
    "empty alternatives": "(|a|)*",
    "huge bound": "a{100000}",
    "bound without end": "(?:a{1,100}){1,100}",
    "not closed": "(a",
    "not a pattern": "*a",
}
OTHERS = [r"\s*[\r\n]+b", "a+b", "a?", "|a", "[a&&b]", r"\K", "(?i:a+)+", "a" * 501]  # refused too
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PUBLISHED = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| "
    r"?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    *(
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ending}|\p{{N}}{{1,3}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for ending in (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
    ),
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]\^_`{|}~]",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\s{2,}|[\n\r\t]",
    r" {2,}",
    r"\(a\)+[)]*",
]
TOKENIZERS: dict[str, Edit] = {
    **{f"Split: {name}": splits(pattern) for name, pattern in REGEXES.items()},
    **{f"Replace: {name}": replaces(pattern) for name, pattern in REGEXES.items()},
    "WordPiece without [UNK]": tokenizer(without_unknown),
    "template with a huge id": tokenizer(template(2**32 - 1)),
    "template with an id above the table": tokenizer(template(10**6)),
    "negative id in a template": tokenizer(template(-1)),
    "token id above the table": tokenizer(lambda t: t["model"]["vocab"].update(aaaa=10**6)),
    "continuation prefix of 10 MB": tokenizer(
        lambda t: t["model"].update(continuing_subword_prefix="#" * 10_000_000)
    ),
    "long Unigram pieces": tokenizer(unigram(100_000)),
    "a word of any length": tokenizer(lambda t: t["model"].update(max_input_chars_per_word=10**9)),
    "dropout": tokenizer(lambda t: t["model"].update(type="BPE", merges=[], dropout=0.5)),
    "a template that repeats the text": tokenizer(repeated),
    "replacements that multiply": tokenizer(
        lambda t: t.update(
            normalizer={
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 99}] * 8,
            }
        )
    ),
    "unknown model": tokenizer(lambda t: t["model"].update(type="Neural")),
    "unknown normalizer": tokenizer(lambda t: t.update(normalizer={"type": "Python"})),
}

# Manifests and files


def manifest(**changes: Any) -> Edit:
    def change(folder: Path):
        control(folder)
        write_manifest(folder, **changes)

    return change


def graph_named(name: str) -> Edit:
    """The graph's name in the manifest, with the right hash, where one can be written: the file is there."""

    def change(folder: Path):
        control(folder)
        entry, hashes = read(folder)["precisions"]["int8"], read(folder)["files"]
        (folder.parent / "outside.onnx").write_bytes((folder / GRAPH).read_bytes())
        write_manifest(
            folder, precisions={"int8": {**entry, "file": name}}, files={**hashes, name: hashes[GRAPH]}
        )

    return change


def file_named(name: str) -> Edit:
    def change(folder: Path):
        control(folder)
        write_manifest(folder, files={**read(folder)["files"], name: "0" * 64})

    return change


def raw_manifest(edit: Callable[[str], str]) -> Edit:
    def change(folder: Path):
        control(folder)
        path = folder / "manifest.json"
        path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")

    return change


def sparse_file(name: str) -> Edit:
    """A file of 200 GB that takes no room on the disk. Its hash cannot be known before it is read."""

    def change(folder: Path):
        control(folder)
        with (folder / name).open("wb") as file:
            file.truncate(HUGE)

    return change


def linked(name: str) -> Edit:
    def change(folder: Path):
        control(folder)
        outside = folder.parent / f"outside-{Path(name).name}"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return change


ESCAPES = [
    "../outside.onnx",
    "onnx/../../outside.onnx",
    "/etc/outside.onnx",
    "C:\\outside.onnx",
    "onnx\\..\\..\\outside.onnx",
    "\\\\h\\s\\x.onnx",
]
MANIFESTS: dict[str, Edit] = {
    **{f"graph's name {name}": graph_named(name) for name in ESCAPES},
    **{f"file's name {name}": file_named(name) for name in ("../x", "/x", "a//b", "")},
    **{f"link out of the folder: {name}": linked(name) for name in (GRAPH, "tokenizer.json")},
    "graph in the ORT format": graph_named("onnx/model.ort"),
    "dims of 0": manifest(dims=[0]),
    "dims of another width": manifest(dims=[7]),
    "dims of 10^9": manifest(dims=[10**9]),
    "max_tokens of 10^9": manifest(max_tokens=10**9),
    "max_tokens of 0": manifest(max_tokens=0),
    "pad_id above the table": manifest(pad_id=2**40),
    "prompt that is no text": manifest(prompt=["a"]),
    "prompt of 1 MB": manifest(prompt="a " * 500_000),
    "schema of the future": manifest(schema=99),
    "not JSON": raw_manifest(lambda text: text[:-20]),
    "a list": raw_manifest(lambda text: "[]"),
    "100,000 deep": raw_manifest(lambda text: "[" * 100_000),
    "no precision": manifest(precisions={}),
}
FILES: dict[str, Edit] = {
    f"{name} of 200 GB": sparse_file(name) for name in ("tokenizer.json", "manifest.json", GRAPH)
}
READING: dict[str, Edit] = {
    f"{name} of 200 GB": sparse_file(name) for name in ("parity.json", "README.md")
}  # for `verify` and its like

OPENING: dict[str, Edit] = {**GRAPHS, **MANIFESTS, **FILES}
ENCODING: dict[str, Edit] = {**RUNS, **TOKENIZERS}
