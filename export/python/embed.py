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
import hashlib
import json
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

LARGEST_BYTES = {
    "manifest.json": 4_000_000,
    "tokenizer.json": 64_000_000,
    "parity.json": 64_000_000,
}  # of a graph 2**31 - 1
UNIT_LENGTH = 0.01  # how far an embedding's length may be from 1
ROLES = {"text": "prompt", "query": "query_prompt", "document": "document_prompt"}

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
    path, most = inside(folder, name), LARGEST_BYTES.get(name, 2**31 - 1)
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


def encoders(folder: Path) -> dict[str, Path]:
    """The folders of a bundle's encoders: of a pair, whose manifest has the hashes of theirs, by their roles,
    of any other bundle its own for all roles. Exits with 1 where the hashes differ."""
    found = parsed(folder, "manifest.json", contents(folder, "manifest.json"))
    if found.get("kind") != "pair":
        return dict.fromkeys(ROLES, folder)
    if found.get("schema") != 1 or not isinstance(found.get("files"), dict):
        sys.exit(
            f"{folder / 'manifest.json'}: schema {found.get('schema')!r}, or no files; copy the bundle again"
        )
    for role in ("query", "document"):
        verified(folder, found, f"{role}/manifest.json")
    return {role: folder / role for role in ("query", "document")}


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


def verified(folder: Path, manifest: dict[str, Any], name: str) -> bytes:
    """A file of the bundle, whose sha256 is that of the manifest. Exits with 1 where it is not."""
    data = contents(folder, name)
    if hashlib.sha256(data).hexdigest() != manifest["files"].get(name):
        sys.exit(
            f"{folder / name}: changed since export (its sha256 is not that of manifest.json); copy the "
            "bundle again"
        )
    return data


def check_graph(data: bytes) -> None:
    """Raises ValueError for a graph whose data is not all in its own bytes, or with an operator that is not
    listed.

    A strict reader of protobuf: what it does not know, it refuses, so that onnxruntime reads nothing in
        another way.
    """
    if data[4:8] == b"ORTM":
        raise ValueError("in ORT format, not ONNX")
    if _read(data, "model", 0, len(data)).get("graph") != 1:
        raise ValueError("not an ONNX graph")


def _read(data: bytes, what: str, at: int, end: int) -> dict[str, Any]:
    """How often each field of a message occurs that is read, and a node's texts."""
    skipped, read = FIELDS[what]
    found: dict[str, Any] = {}
    while at < end:
        key, start = _number(data, at, end)
        field, wire_type, name = key >> 3, key & 7, read.get(key >> 3)
        if wire_type == 0:
            value, stop = _number(data, start, end)
        elif wire_type in (1, 2, 5):
            length, value = _number(data, start, end) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], start)
            stop = value + length
        else:
            raise ValueError(f"wire type {wire_type} at byte {at}")
        if stop > end:
            raise ValueError(f"cut off at byte {at}")
        is_inside = (
            what == "tensor" and field == 14 and wire_type == 0 and value == 0
        )  # the data is in this file
        if (name is None and field not in skipped and not is_inside) or (name is not None and wire_type != 2):
            raise ValueError(
                f"field {field} of a {what} at byte {at}, as of weights in another file, which no bundle "
                "needs"
            )
        if name in ("operator", "domain"):
            if name in found:
                raise ValueError(f"a node with {name} twice at byte {at}")
            found[name] = data[value:stop].decode("utf-8")
        elif name is not None:
            found[name] = found.get(name, 0) + 1
            _read(data, name, value, stop)
        at = stop
    if what == "node":
        domain, operator = found.get("domain", ""), found.get("operator", "")
        domain = "" if domain == "ai.onnx" else domain
        if operator not in OPERATORS.get(domain, "").split():
            raise ValueError(f"an operator that a bundle may not use ({domain!r} {operator!r})")
    return found


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An integer of 1 to 10 bytes, and where it ends."""
    number = 0
    for place in range(min(10, end - at)):
        number |= (data[at + place] & 127) << 7 * place
        if data[at + place] < 128:
            return number, at + place + 1
    raise ValueError(f"a number without an end at byte {at}")


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
        self.folder, self.precision, self.manifest = folder, precision, read_manifest(folder)
        file = self.manifest["precisions"][precision]["file"]
        graph = verified(folder, self.manifest, file)
        try:
            check_graph(graph)
        except ValueError as error:
            sys.exit(
                f"{folder / file}: refused: {error}; get the bundle again, or export it again from its run"
            )
        tokenizer_json = verified(folder, self.manifest, "tokenizer.json").decode("utf-8", "replace")
        try:
            self._session = onnxruntime.InferenceSession(graph)
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
            self._tokenizer.no_padding()
            side = (self._tokenizer.truncation or {}).get("direction", "right")
            self._tokenizer.enable_truncation(self.manifest["max_tokens"], direction=side)
        except BaseException as error:  # noqa: BLE001 - of many classes; a panic of tokenizers is no Exception
            refuse(error, f"{folder}: cannot be opened")

    def token_ids(self, text: str, role: str = "text") -> list[int]:
        prompt = self.manifest.get(ROLES[role], self.manifest["prompt"])
        return self._tokenizer.encode(prompt + text).ids

    def __call__(self, text: str, role: str = "text") -> np.ndarray:
        output, dims = self.manifest["output"], self.manifest["dims"][0]
        try:
            ids = np.array([self.token_ids(text, role)], np.int64)
            rows = self._session.run([output], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        except BaseException as error:  # noqa: BLE001 - as above
            refuse(error, f"{self.folder}: fails for a text")
        if rows.shape != (1, dims) or not abs(np.linalg.norm(rows) - 1) <= UNIT_LENGTH:
            fact = f"gives {rows.shape} numbers of length {np.linalg.norm(rows)}, not {dims} of length 1"
            sys.exit(f"{self.folder}: {fact}; copy the bundle again")
        return rows[0]


def compact(row: np.ndarray, precision: str) -> np.ndarray:
    """An embedding in int8, x · 127√d / 8, rounded and clipped to ±127, or in the bits x > 0, as numpy packs
    them; in float32 as it is."""
    if precision == "binary":
        return np.packbits(row > 0)
    if precision == "int8":
        return np.clip(np.rint(row * np.float32(127 * len(row) ** 0.5 / 8)), -127, 127).astype(np.int8)
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
        fact = "no golden texts with token ids and embeddings of unit length"
        sys.exit(f"{embed.folder / 'parity.json'}: {fact}; copy the bundle again")
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
        way_out = "give the folder of one (of a shipped bundle, edgedistill verify NAME prints it)"
        parser.exit(2, f"{asked.bundle}: not a bundle (no manifest.json); {way_out}\n")
    folders = encoders(asked.bundle)
    if asked.check:
        opened = [
            open_bundle(each, asked.precision, asked.bundle) for each in dict.fromkeys(folders.values())
        ]
        return 1 if [each for each in opened if not check(each)] else 0
    if asked.role not in folders:
        parser.exit(2, f"{asked.bundle}: a pair of encoders; add --as query or --as document\n")
    embed = open_bundle(folders[asked.role], asked.precision, asked.bundle)
    if asked.embeddings == "binary" and embed.manifest["dims"][0] % 8:
        parser.exit(2, "--embeddings binary: needs dimensions in whole bytes; choose int8\n")
    for line in sys.stdin:
        row = compact(embed(line.rstrip("\n"), asked.role), asked.embeddings)
        print(json.dumps([round(x, 7) for x in row.tolist()]))
    return 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(
            signal.SIGPIPE, signal.SIG_DFL
        )  # end silently when the reader is gone, as with `| head`
    sys.exit(main())
