"""Run a bundle with numpy, tokenizers and onnxruntime alone. Copy this file next to a bundle, or start your
own program from it.

python embed.py BUNDLE [PRECISION] < texts.txt
    reads one text a line and writes one embedding (a JSON array) a line
python embed.py BUNDLE [PRECISION] --embeddings int8 < texts.txt
    the same in fewer bytes: int8, a number for each dimension, or binary, its sign bits in bytes
python embed.py BUNDLE [PRECISION] --as query < questions.txt
    the same for queries, or for documents: with the bundle's prompt for them, where it has one; of a pair of
    encoders, by the one for them
python embed.py BUNDLE [PRECISION] --check
    compares the embeddings of the bundle's golden texts; exit 1 where they differ

BUNDLE: a folder. PRECISION: one that the bundle has; by default the fastest, by the manifest's rank.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from tokenizers import Tokenizer

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # which onnxruntime reads when it is imported
import onnxruntime

LARGEST_BYTES = {
    "manifest.json": 4_000_000,
    "tokenizer.json": 64_000_000,
    "parity.json": 64_000_000,
}  # of a graph 2**31 - 1
MOST_FIELDS = 200_000
MOST_NODES = 20_000  # of a graph; an encoder of 24 layers has some 30,000 and 5,000
UNIT_LENGTH = 0.01  # how far an embedding's length may be from 1
ROLES = {"text": "prompt", "query": "query_prompt", "document": "document_prompt"}

ORT_FORMAT = b"ORTM"  # bytes 4 to 8 of a file that onnxruntime reads in another way
VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5  # how protobuf writes a field
DATA_LOCATION = 14  # of a tensor; 0: in this file
# Of each message of an ONNX file: the fields that are skipped, and those that hold a message or a text that
# is read. What is not listed is
# refused: external data, subgraphs, functions, training steps, sparse tensors, strings.
FIELDS: dict[str, tuple[set[int], dict[int, str]]] = {
    "model": ({1, 2, 3, 4, 5, 6, 8, 14, 26}, {7: "graph"}),
    "graph": ({2, 10, 11, 12, 13, 14, 16}, {1: "node", 5: "tensor"}),
    "node": ({1, 2, 3, 6, 8, 9, 10}, {4: "operator", 5: "attribute", 7: "domain"}),
    "attribute": ({1, 2, 3, 4, 7, 8, 9, 13, 20}, {5: "tensor", 10: "tensor"}),
    "tensor": ({1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 16}, {}),
}
OPERATORS = {
    "": "Compress Gather GatherElements GatherND NonZero ScatterElements ScatterND Slice Split Where "
    "Concat ConstantOfShape Expand Flatten Identity Pad Range Reshape Shape Size Squeeze Tile Transpose "
    "Trilu "
    "Unsqueeze "
    "Abs Add Ceil Clip CumSum Div Erf Exp Floor Log Max Mean Min Mod Mul Neg Pow Reciprocal Round Sign Sqrt "
    "Sub Sum "
    "Sin Cos "
    "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor "
    "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare "
    "Elu Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Sigmoid Softmax LogSoftmax Softplus Tanh "
    "Conv Einsum Gemm MatMul LayerNormalization LpNormalization GRU LSTM "
    "Cast CastLike Constant DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul "
    "QuantizeLinear ",
    "com.microsoft": "BiasGelu FastGelu Gelu QuickGelu "
    "Attention EmbedLayerNormalization MultiHeadAttention RotaryEmbedding SkipLayerNormalization "
    "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized MatMulIntegerToFloat "
    "MatMulNBits QuantizeLinear ",
}
ALLOWED = {(domain, kind) for domain, kinds in OPERATORS.items() for kind in kinds.split()}

# What bounds the tokens of a text: characters of strings in tokenizer.json, its steps, how a text grows.
LIMITS = {"pattern": 500, "token": 1_000, "unigram": 256, "affix": 100, "string": 1_000, "table": 4_000_000}
LIMITS |= {"word": 256, "steps": 64, "growth": 1_000, "lengthening": 2, "special": 64}
STEPS = {  # of each part: where a Sequence holds its steps, and the kinds of steps
    "normalizer": (
        "normalizers",
        "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip "
        "StripAccents",
    ),
    "pre_tokenizer": (
        "pretokenizers",
        "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace Punctuation Split "
        "UnicodeScripts Whitespace WhitespaceSplit",
    ),
    "post_processor": ("processors", "BertProcessing ByteLevel RobertaProcessing TemplateProcessing"),
    "decoder": ("decoders", "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Strip WordPiece"),
}
TABLE = "precompiled_charsmap"  # the size of a trie, the trie, strings that end in zero
GROWS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # characters that one becomes
# Patterns: alternatives of characters and classes, where nothing that can fail follows what repeats without
# end; and three of published tokenizers as they are.
CHARACTER = r"(?:[^\\\[\](){}*+?.^$|]|\\[sSdDwWrnt]|\\[!-/:-@\[-^`{-~]|\\[pP]\{[A-Za-z_]+\})"
ATOM = rf"(?:{CHARACTER}|\[\^?(?:{CHARACTER}|[(){{}}*+?.$|])+\])"
GROUP = rf"\(\?i?:{ATOM}{{1,8}}(?:\|{ATOM}{{1,8}}){{0,20}}\)"
REPEATED = rf"{ATOM}(?:\+|\{{[1-9],\}}|\{{1,[1-9]\}})?(?:{ATOM}\*)?(?:{GROUP}\?)?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
OTHER = r"[^\r\n\p{L}\p{N}]?"
KNOWN = [
    *(
        f"{OTHER}{UPPER}*{LOWER}+{end}|{OTHER}{UPPER}+{LOWER}*{end}"
        for end in ("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
    ),
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
]
ALTERNATIVE = (
    rf"(?:{'|'.join(map(re.escape, KNOWN))}|(?:{ATOM}(?:\?|\{{[1-9]\}})?){{0,8}}(?:{REPEATED}|{GROUP}))"
)
SPACES = r"(?:\|\\s\*\[\\r\\n\]\+)?(?:\|\\s\+\(\?!\\S\))?\|\\s\+"
PATTERN = re.compile(rf"(?![\s\S]*(?:&&|--|~~)){ALTERNATIVE}(?:\|{ALTERNATIVE}){{0,20}}(?:{SPACES})?")


def inside(folder: Path, name: object) -> Path:
    """The path of a file of the bundle. Exits with 1 for a name, or a link, that leaves its folder."""
    parts = name.split("/") if isinstance(name, str) else [".."]
    path = folder / str(name)
    if {"", ".", ".."} & set(parts) or any(letter in str(name) for letter in "\\:\0"):
        sys.exit(f"{folder}: the file name {name!r} leaves the bundle; do not use this bundle")
    if path.resolve() != folder.resolve() / str(name):
        sys.exit(f"{path}: a link, which leads out of the bundle's folder; copy it without links (cp -RL)")
    return path


def contents(folder: Path, name: str) -> bytes:
    """The bytes of a file of the bundle. Exits with 1 where it is missing or too large to be one."""
    path = inside(folder, name)
    most = LARGEST_BYTES.get(name, 2**31 - 1)
    if not path.is_file() or path.stat().st_size > most:
        sys.exit(f"{path}: missing, or above {most} bytes; copy the bundle again")
    return path.read_bytes()


def parsed(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        sys.exit(f"{folder / name}: not a JSON object, truncated or edited; copy the bundle again")
    return found


def encoders(folder: Path) -> dict[str, list[Path]]:
    """The folders of a bundle's encoders: of a pair, whose manifest has the hashes of theirs, by their roles,
    of any other bundle its own for all roles. A text's embedding is the mean of those of its role. Exits with
    1 where the hashes differ."""
    found = parsed(folder, "manifest.json", contents(folder, "manifest.json"))
    if found.get("kind") != "pair":
        return {role: [folder] for role in ROLES}
    if (
        found.get("schema") != 1
        or not isinstance(found.get("files"), dict)
        or found.get("documents", "mean") != "mean"
    ):
        sys.exit(
            f"{folder / 'manifest.json'}: schema {found.get('schema')!r}, no files, or documents that are "
            "no mean; copy the bundle again"
        )
    for role in ("query", "document"):
        verified(folder, found, f"{role}/manifest.json")
    both = [folder / "document", *([folder / "query"] if "documents" in found else [])]
    return {"query": [folder / "query"], "document": both}


def read_manifest(folder: Path) -> dict[str, Any]:
    """manifest.json, as far as this program uses it. Exits with 1 for what is not one."""
    found = parsed(folder, "manifest.json", contents(folder, "manifest.json"))
    dims, precisions, files = (found.get(key) for key in ("dims", "precisions", "files"))
    good = isinstance(dims, list) and dims and all(type(dim) is int and 0 < dim <= 65_536 for dim in dims)
    good = good and type(found.get("max_tokens")) is int and 0 < found["max_tokens"] <= 131_072
    prompts = [found.get("prompt"), *(found.get(key, "") for key in ROLES.values())]
    good = good and all(isinstance(prompt, str) and len(prompt) <= 10_000 for prompt in prompts)
    good = good and isinstance(found.get("output"), str)
    good = (
        good
        and isinstance(files, dict)
        and isinstance(precisions, dict)
        and all(isinstance(each, dict) for each in precisions.values())
    )
    good = good and type(found.get("pad_id", 0)) is int and 0 <= found.get("pad_id", 0) < 2**31
    calibration = found.get("calibration", {})
    good = good and isinstance(calibration, dict) and good_numbers(calibration, dims[0])
    if not good or not precisions:
        sys.exit(
            f"{folder / 'manifest.json'}: keys missing or of the wrong type, truncated or edited; copy the "
            "bundle again"
        )
    if found.get("schema") != 1:
        sys.exit(
            f"{folder / 'manifest.json'}: schema {found.get('schema')!r}, this program reads 1; get a newer "
            "one"
        )
    if found.get("labels"):
        sys.exit(f"{folder}: a classifier, which has no embeddings; classify with edgedistill")
    for name in [*files, *(entry.get("file") for entry in precisions.values())]:
        inside(folder, name)
    return found


def good_numbers(calibration: dict[str, Any], dims: int) -> bool:
    """Whether a calibration has a range above 0 and a mean of so many dimensions."""
    mean = calibration.get("mean", [0] * dims)
    most = calibration.get("int8_range", 8)
    numbers = [most, *mean] if isinstance(mean, list) and len(mean) == dims else [None]
    return all(type(x) in (int, float) and abs(x) < 2**16 for x in numbers) and most > 0


def verified(folder: Path, manifest: dict[str, Any], name: str) -> bytes:
    """A file of the bundle, whose sha256 is that of the manifest. Exits with 1 where it is not."""
    data = contents(folder, name)
    if hashlib.sha256(data).hexdigest() != manifest["files"].get(name):
        sys.exit(
            f"{folder / name}: changed since export (its sha256 is not that of manifest.json); copy the "
            "bundle again"
        )
    return data


def check_graph(data: Any) -> None:
    """Raise ValueError with what is wrong with the bytes of a graph."""
    if data[4:8] == ORT_FORMAT:
        raise ValueError("in ORT format, not ONNX")
    if _read(data, "model", 0, len(data), iter(range(MOST_FIELDS))).get("graph") != 1:
        raise ValueError("not an ONNX graph")


def _read(data: Any, message: str, at: int, end: int, left: Iterator[int]) -> dict[str, Any]:
    """Read a message. Returns how often each field occurs that is read, and a node's texts.

    left: an item for each field that may still be read.
    """
    skipped, read = FIELDS[message]
    fields: dict[str, Any] = {}
    while at < end:
        if next(left, None) is None or fields.get("node", 0) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} nodes, or {MOST_FIELDS} fields")
        key, start = number(data, at, end)
        field = key >> 3
        wire_type = key & 7
        value, stop = span(data, wire_type, start, end)
        name = read.get(field)
        if name is None:
            in_this_file = message == "tensor" and (field, wire_type, value) == (DATA_LOCATION, VARINT, 0)
            if field not in skipped and not in_this_file:
                raise ValueError(
                    f"field {field} of a {message} at byte {at}, such as weights in another file, which "
                    "no bundle needs"
                )
        elif wire_type != BYTES:
            raise ValueError(f"not an ONNX graph ({name} of another type at byte {at})")
        elif name not in ("operator", "domain"):
            fields[name] = fields.get(name, 0) + 1
            _read(data, name, value, stop, left)
        elif name in fields:
            raise ValueError(f"a node with {name} twice at byte {at}")
        else:
            fields[name] = bytes(data[value:stop]).decode("utf-8")
        at = stop
    if message == "node":
        _check_operator(fields.get("domain", ""), fields.get("operator", ""))
    return fields


def _check_operator(domain: str, kind: str) -> None:
    domain = "" if domain == "ai.onnx" else domain
    if (domain, kind) not in ALLOWED:
        name = f"{domain}.{kind}" if domain else kind
        raise ValueError(f"an operator that a bundle may not use ({name[:100]!a})")


def span(data: Any, wire_type: int, at: int, end: int) -> tuple[int, int]:
    """(the number itself, or where the value starts; where it stops) of a field."""
    if wire_type == VARINT:
        return number(data, at, end)
    if wire_type == BYTES:
        length, at = number(data, at, end)
    elif wire_type in (FIXED64, FIXED32):
        length = 8 if wire_type == FIXED64 else 4
    else:
        raise ValueError(f"not an ONNX graph (wire type {wire_type} at byte {at})")
    if at + length > end:
        raise ValueError(f"cut off at byte {at}")
    return at, at + length


def number(data: Any, at: int, end: int) -> tuple[int, int]:
    """An integer of 1 to 10 bytes, and where it ends."""
    number = 0
    for place in range(min(10, end - at)):
        byte = data[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise ValueError(f"not an ONNX graph (a number without an end at byte {at})")


def check_tokenizer(data: bytes) -> None:
    """Raises an error for a tokenizer.json whose tokens may take a time that a text's length does not bound:
    ValueError with what is wrong, or another where its parts are no parts of a tokenizer."""
    tokenizer = json.loads(data, object_pairs_hook=_distinct)
    _check_model(tokenizer["model"])
    steps = {part: list(_flat(tokenizer.get(part), part)) for part in STEPS}
    for part in STEPS:
        _most(len(steps[part]), "steps")
        for step in steps[part]:
            _check_step(step)
    before = [step["type"] for step in (*steps["normalizer"], *steps["pre_tokenizer"])]
    _most(_growth(steps["normalizer"]), "growth")
    _most(before.count("ByteLevel") + before.count("Metaspace"), "lengthening")
    _most(sum(map(_added_tokens, steps["post_processor"])), "special")
    for token in tokenizer.get("added_tokens") or []:
        if (token.get("lstrip") or token.get("rstrip")) and token["content"] != token["content"].strip():
            raise ValueError("added_tokens: one that takes the white space that it is found in")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a key that occurs twice, parsers read the first, the last, or none."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice, of which parsers read one or the other")
    return found


def _most(number: int, what: str) -> None:
    if number > LIMITS[what]:
        raise ValueError(f"{what}: {number}, above {LIMITS[what]}")


def _check_model(model: dict[str, Any]) -> None:
    vocab = model["vocab"]
    for token in vocab if isinstance(vocab, dict) else [pair[0] for pair in vocab]:
        _most(len(token), "unigram" if model["type"] == "Unigram" else "token")
    _check_strings(model, "affix")
    word = model.get("max_input_chars_per_word", 100)
    if type(word) is not int or word < 1 or model.get("dropout"):
        raise ValueError("model: dropout, or words of no length")
    _most(word, "word")


def _flat(step: Any, part: str) -> Iterator[dict[str, Any]]:
    """The steps of a part of tokenizer.json, those of sequences in their place."""
    key, kinds = STEPS[part]
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step[key]:
            yield from _flat(inner, part)
    elif step["type"] in kinds.split():
        yield step
    else:
        raise ValueError(f"{part}: type {step['type']!r}, which is none of Sequence {kinds}")


def _check_step(step: dict[str, Any]) -> None:
    _check_strings(step, "string")
    pattern = step.get("pattern") or {}
    expression = pattern.get("Regex", pattern.get("String") or "a")
    if pattern.get("String") == "" or not isinstance(expression, str):
        raise ValueError(f"{step['type']}: an empty pattern")
    if "Regex" in pattern and not (len(expression) <= LIMITS["pattern"] and PATTERN.fullmatch(expression)):
        raise ValueError(
            f"{step['type']}: {expression[:100]!a} is no pattern of a published tokenizer, and not as simple"
        )


def _check_strings(values: dict[str, Any], what: str) -> None:
    for key, value in values.items():
        if isinstance(value, str):
            _most(len(value), "table" if key == TABLE else what)


def _growth(normalizer: list[dict[str, Any]]) -> int:
    """By how much a normalizer can multiply a text's length: what one step puts in, the next ones may
    lengthen."""
    growth = 1
    for step in normalizer:
        if step["type"] in ("Precompiled", "Replace"):
            growth *= max(1, _longest_replacement(step))
        elif growth > 1:
            growth *= GROWS.get(step["type"], 1)
    return growth


def _longest_replacement(step: dict[str, Any]) -> int:
    """What a step of a normalizer puts in at most. tokenizers takes the memory for a table of characters
    before it reads any."""
    if step["type"] == "Replace":
        return len(step["content"])
    table = base64.b64decode(step[TABLE])
    end = 4 + int.from_bytes(table[:4], "little")
    if end > len(table):
        raise ValueError(f"{TABLE}: not as long as it says")
    return max(map(len, table[end:].split(b"\0")))


def _added_tokens(step: dict[str, Any]) -> int:
    """How many special tokens a step of a post-processor adds to a text, at most."""
    template = step.get("single")
    special = step.get("special_tokens") or {}
    if template is None:
        return 4
    if sum("Sequence" in item for item in template) > 1:
        raise ValueError("post_processor: a template that repeats the text")
    return len(template) * max([1, *(len(entry["ids"]) for entry in special.values())])


def refuse(error: BaseException, fact: str) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        raise error
    sys.exit(f"{fact} ({(str(error) or type(error).__name__).splitlines()[0][:200]}); copy the bundle again")


def place(entry: dict[str, Any]) -> float:
    """A precision's place by speed where the processor multiplies 8-bit integers; one without a rank comes
    last."""
    rank = entry.get("rank")
    found = rank.get("int8_cpu") if isinstance(rank, dict) else None
    return found if type(found) is int else float("inf")


class Bundle:
    """An opened bundle: called with a text, and what it is, one of ROLES, it returns its embedding, (d,)
    float32, of unit length.

    Longer texts are truncated to `max_tokens`. Both opening and calling exit with 1: for a graph or a
    tokenizer that is refused, and for a text whose embedding is not of unit length.
    """

    def __init__(self, folder: Path, precision: str) -> None:
        self.folder = folder
        self.precision = precision
        self.manifest = read_manifest(folder)
        file = self.manifest["precisions"][precision]["file"]
        graph = verified(folder, self.manifest, file)
        try:
            check_graph(graph)
        except ValueError as error:
            sys.exit(
                f"{folder / file}: refused: {error}; get the bundle again, or export it again from its run"
            )
        tokenizer_json = verified(folder, self.manifest, "tokenizer.json")
        try:
            check_tokenizer(tokenizer_json)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            sys.exit(
                f"{folder / 'tokenizer.json'}: refused: {error!s:.300}; get the bundle again, or export it "
                "again from its run"
            )
        try:
            self._session = onnxruntime.InferenceSession(graph)
            self._tokenizer = Tokenizer.from_str(tokenizer_json.decode("utf-8"))
            self._tokenizer.no_padding()
            side = (self._tokenizer.truncation or {}).get("direction", "right")
            self._tokenizer.enable_truncation(self.manifest["max_tokens"], direction=side)
        except BaseException as error:  # noqa: BLE001 - of many classes; a panic of tokenizers is no Exception
            refuse(error, f"{folder}: cannot be opened")

    def token_ids(self, text: str, role: str = "text") -> list[int]:
        prompt = self.manifest.get(ROLES[role], self.manifest["prompt"])
        return self._tokenizer.encode(prompt + text).ids

    def __call__(self, text: str, role: str = "text") -> np.ndarray:
        output = self.manifest["output"]
        dims = self.manifest["dims"][0]
        try:
            ids = np.array([self.token_ids(text, role)], np.int64)
            # a graph of a fixed shape takes no other
            room = self.manifest["max_tokens"] - ids.shape[1] if "shape" in self.manifest else 0
            columns = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            columns = {name: np.pad(row, ((0, 0), (0, room))) for name, row in columns.items()}
            rows = self._session.run([output], columns)[0]
        except BaseException as error:  # noqa: BLE001 - as above
            refuse(error, f"{self.folder}: fails for a text")
        if rows.shape != (1, dims) or not abs(np.linalg.norm(rows) - 1) <= UNIT_LENGTH:
            sys.exit(
                f"{self.folder}: gives {rows.shape} numbers of length {np.linalg.norm(rows)}, not "
                f"{dims} of length 1; copy the bundle again"
            )
        return rows[0]


def compact(row: np.ndarray, precision: str, manifest: dict[str, Any]) -> np.ndarray:
    """An embedding in int8, x · 127√d / range, rounded and clipped to ±127, or in the bits x > mean, as numpy
    packs them; in float32 as it is. Range and mean are the manifest's, 8 and 0 where it has none. Exits where
    int8 would not hold it."""
    calibration = manifest.get("calibration", {})
    if precision == "binary":
        return np.packbits(row > np.array(calibration.get("mean", 0), np.float32))
    if precision == "int8":
        scaled = row * np.float32(127 * len(row) ** 0.5 / calibration.get("int8_range", 8))
        clipped = np.clip(np.rint(scaled), -127, 127)
        if clipped @ scaled < 0.98 * np.linalg.norm(clipped) * np.linalg.norm(scaled):  # their cosine
            sys.exit("--embeddings: int8 clips the embedding of a text; choose float32")
        return clipped.astype(np.int8)
    return row


def open_bundle(folder: Path, precision: str | None, given: Path) -> Bundle:
    """An encoder of the bundle that was given, in the precision asked for, by default the fastest; the
    document encoder of a pair in its fastest too where it lacks that precision. Exits with 2 for an unknown
    one."""
    precisions = read_manifest(folder)["precisions"]
    fastest = min(precisions, key=lambda name: place(precisions[name]))
    if precision not in precisions and precision is not None and folder != given / "document":
        print(f"{folder}: no precision {precision!r}; choose {' or '.join(precisions)}", file=sys.stderr)
        sys.exit(2)
    return Bundle(folder, precision if precision in precisions else fastest)


def check(embed: Bundle) -> bool:
    """Print how the golden texts compare. Exits with 1 where there are none."""
    golden = parsed(embed.folder, "parity.json", verified(embed.folder, embed.manifest, "parity.json"))
    try:
        least = float(golden["cosine_at_least"][embed.precision])
        vectors = np.array(golden["vectors"], np.float32)
        roles = golden.get("roles", ["text"] * len(vectors))
        texts = list(zip(golden["texts"], roles, golden["ids"], vectors, strict=True))
        good = bool(texts) and all(role in ROLES for role in roles)
    except (KeyError, TypeError, ValueError):
        good = False
    if not good or not (np.abs((vectors**2).sum(1) - 1) <= UNIT_LENGTH).all():  # NaN is not
        sys.exit(
            f"{embed.folder / 'parity.json'}: no golden texts with token ids and embeddings of unit "
            "length; copy the bundle again"
        )
    wrong = [text for text, role, ids, _ in texts if embed.token_ids(text, role) != ids]
    cosines = [float(embed(text, role) @ vector) for text, role, _, vector in texts]
    found = {"texts": len(cosines), "other_token_ids": len(wrong), "cosine_min": min(cosines)}
    print(json.dumps({**found, "cosine_at_least": least}))
    return not wrong and all(cosine >= least for cosine in cosines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("precision", nargs="?")
    parser.add_argument("--embeddings", choices=("float32", "int8", "binary"), default="float32")
    parser.add_argument("--as", dest="role", choices=ROLES, default="text")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if not (asked.bundle / "manifest.json").is_file():
        parser.exit(
            2,
            f"{asked.bundle}: not a bundle (no manifest.json); give the folder of one (of a shipped "
            "bundle, edgedistill verify NAME prints it)\n",
        )
    folders = encoders(asked.bundle)
    if asked.check:
        opened = [
            open_bundle(each, asked.precision, asked.bundle)
            for each in dict.fromkeys(folder for of in folders.values() for folder in of)
        ]
        return 1 if [each for each in opened if not check(each)] else 0
    if asked.role not in folders:
        parser.exit(2, f"{asked.bundle}: a pair of encoders; add --as query or --as document\n")
    opened = [open_bundle(each, asked.precision, asked.bundle) for each in folders[asked.role]]
    if asked.embeddings == "binary" and opened[0].manifest["dims"][0] % 8:
        parser.exit(2, "--embeddings binary: needs dimensions in whole bytes; choose int8\n")
    for line in sys.stdin:
        row, *others = (embed(line.rstrip("\n"), asked.role) for embed in opened)
        for other in others:
            row = (row + other) / max(np.linalg.norm(row + other), 1e-12)
        row = compact(row, asked.embeddings, opened[0].manifest)
        print(json.dumps([round(x, 7) for x in row.tolist()]))
    return 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(
            signal.SIGPIPE, signal.SIG_DFL
        )  # end silently when the reader is gone, as with `| head`
    sys.exit(main())
