"""The readers of export/static, each built and run: token ids and embeddings of the Python runner, and what
they refuse."""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import shutil
import struct
import subprocess
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from edgedistill import load
from edgedistill.device.tokenizer_equality import adversarial_texts, changed_characters
from edgedistill.export import bundle_writer
from edgedistill.mobile import static_file
from edgedistill.runtime import golden_file
from tests.conftest import sentences
from tests.export.test_export import make_run
from tests.mobile.conftest import SPECIAL, TOKENS

LINES = 500  # of the adversarial corpus; test_the_whole_corpus has all
ROOT = Path(__file__).resolve().parents[2]
STATIC, DRIVERS = ROOT / "export" / "static", Path(__file__).parent / "static_readers"
FORMAT = runpy.run_path(str(STATIC / "student.py"))
Student, StudentError, HEADER = FORMAT["Student"], FORMAT["StudentError"], FORMAT["HEADER"]
START, NAMES = FORMAT["START"].size, FORMAT["NAMES"]
SIZES = FORMAT["Sizes"]._fields
ROLES: tuple[str, ...] = FORMAT["ROLES"]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SWIFTC = os.environ.get("SWIFTC", "swiftc")

Text = tuple[str, str]  # role, text
Answer = str | tuple[list[int], np.ndarray]  # an error, or token ids and an embedding


def missing(*programs: str) -> pytest.MarkDecorator:
    absent = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(absent), reason=f"needs {' and '.join(absent)}")


def finished(*command: object, stdin: bytes = b"", **environment: str) -> bytes:
    done = subprocess.run(
        list(map(str, command)),
        input=stdin,
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return done.stdout


class Reader:
    """A reader's driver: what to run, the encoding of texts there, and whether its strings hold any code
    units, so that half a surrogate pair is refused and not replaced before the reader sees it."""

    def __init__(self, command: Sequence[object], encoding: str, any_units: bool = True) -> None:
        self.command, self.encoding, self.any_units = command, encoding, any_units

    def __call__(
        self, paths: Sequence[Path], texts: Sequence[Text], ids_only: bool = False
    ) -> list[tuple[str, list[Answer]]]:
        """For each file: "open" with its worst cosine, or an error; and for each text an answer."""
        given = struct.pack("<i", len(texts))
        for role, text in texts:
            data = text.encode(self.encoding, "surrogatepass")
            given += struct.pack("<2i", ROLES.index(role), len(data)) + data
        mode = "ids" if ids_only else "all"
        lines = iter(finished(*self.command, mode, *paths, stdin=given).decode().splitlines())
        found = []
        for _ in paths:
            first = next(lines)
            found.append((first, [answer(next(lines)) for _ in texts] if first.startswith("open") else []))
        assert next(lines, None) is None
        return found


def answer(line: str) -> Answer:
    if line.startswith("error "):
        return line
    ids, numbers = line.split("|")
    return list(map(int, ids.split())), np.array(numbers.split(), np.float64)


@pytest.fixture(scope="session")
def c(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    out = tmp_path_factory.mktemp("c") / "driver"
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O1", "-g"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    finished("gcc", *flags, *sanitizers, "-I", STATIC, DRIVERS / "driver.c", "-o", out, "-lm")
    return Reader([out], "utf-8")


@pytest.fixture(scope="session")
def javascript() -> Reader:
    return Reader(["node", DRIVERS / "driver.mjs", STATIC / "student.js"], "utf-16-le")


@pytest.fixture(scope="session")
def kotlin(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    out = tmp_path_factory.mktemp("kotlin") / "driver.jar"
    finished("kotlinc", STATIC / "Student.kt", DRIVERS / "Driver.kt", "-include-runtime", "-d", out)
    return Reader(["java", "-jar", out], "utf-16-le")


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    out = tmp_path_factory.mktemp("swift") / "driver"
    flags = ["-O", "-warnings-as-errors"]
    finished(SWIFTC, *flags, STATIC / "Student.swift", DRIVERS / "Driver.swift", "-o", out)
    return Reader([out], "utf-16-le", any_units=False)


@pytest.fixture(
    params=[
        pytest.param("c", marks=missing("gcc")),
        pytest.param("javascript", marks=missing("node")),
        pytest.param("kotlin", marks=[missing("kotlinc", "java"), pytest.mark.slow]),
        pytest.param("swift", marks=[missing(SWIFTC), pytest.mark.slow]),
    ]
)
def reader(request: pytest.FixtureRequest) -> Reader:
    found: Reader = request.getfixturevalue(request.param)
    return found


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("static") / "micro"
    return out, static_file.write("micro", None, out, quiet, LINES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Bundles and their files: in w8 with a head, a bias, a tanh and prompts; and with PQ codes."""
    shapes: list[tuple[str | None, dict[str, Any]]] = [
        ("w8", {"tanh": True, "width": 48, "prompt": "the ", "query_prompt": "[SEP] who "}),
        (None, {"pq_bytes": 16, "head": None}),
        (None, {"pq_bytes": 32, "width": 96, "query_prompt": "who "}),
    ]
    found = []
    for precision, shape in shapes:
        root = tmp_path_factory.mktemp("static")
        run = make_run(root / "run", "static", uneven if "pq_bytes" in shape else None, **shape)
        bundle_writer.export(run, ["w8"], root / "bundle", quiet)
        static_file.write(str(root / "bundle"), precision, root / "out", quiet, LINES)
        found.append((root / "bundle", root / "out" / static_file.FILE))
    return found


def uneven(student: Any) -> None:
    """Token weights of many sizes, as a / (a + p) has them, and components that become smaller."""
    student.weights.data = torch.logspace(-3, 1, len(student.weights))
    student.embedding.book.weight.data *= torch.logspace(0, -1, student.embedding.book.embedding_dim)


def words(lowercase: bool) -> Tokenizer:
    """A vocabulary with accents and Hangul letters; added tokens in each other, and as words are spelt."""
    ids = {token: number for number, token in enumerate([*SPECIAL, *TOKENS])}
    found = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=50))
    found.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    found.add_special_tokens(SPECIAL)
    found.add_tokens([AddedToken(text, normalized=False) for text in ("[SEP]x", "THE", "a-b", "É.")])
    found.enable_truncation(16)
    return found


def random_rows(words: Tokenizer, bits: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    draw, size, most = np.random.default_rng(width), words.get_vocab_size(), 1 << bits - 1
    groups = -(-width // 32) if bits == 4 else 1
    return draw.integers(-most, most, (size, width)), draw.normal(size=(size, groups)) / 50


@cache
def characters(tokenizer: str) -> dict[str, str]:
    return changed_characters(Tokenizer.from_str(tokenizer))


def random_codes(words: Tokenizer, blocks: int, centroids: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes, values, scales) of a product-quantized table of 33 dimensions."""
    draw, size = np.random.default_rng(blocks), words.get_vocab_size()
    codes = draw.integers(0, centroids, (size, blocks), dtype=np.uint8)
    codes[-1] = centroids - 1
    return codes, draw.integers(-128, 128, (centroids, 33)), draw.normal(size=(centroids, 2)) / 50


def token_weights(words: Tokenizer) -> np.ndarray:
    return np.random.default_rng(0).normal(size=words.get_vocab_size()) * 1e6


def packed_codes(words: Tokenizer, blocks: int, centroids: int) -> bytes:
    """A file of a product-quantized table."""
    codes, values, scales = random_codes(words, blocks, centroids)
    return _packed(words, table=((8, values, scales), codes), weights=token_weights(words))


def packed(words: Tokenizer, bits: int, width: int, prompts: Sequence[str] = ("", "", "")) -> bytes:
    """A file of random rows without a head."""
    rows = ((bits, *random_rows(words, bits, width)), None)
    return _packed(words, table=rows, weights=None, prompts=prompts)


def _packed(words: Tokenizer, prompts: Sequence[str] = ("", "", ""), **rows: Any) -> bytes:
    around = [[words.token_to_id("[CLS]")], [words.token_to_id("[SEP]")]]
    data: bytes = FORMAT["pack"](
        **rows,
        head=None,
        biases=None,
        tanh=False,
        tokenizer=json.loads(words.to_str()),
        around=around if words.encode("").ids else [[], []],
        characters=characters(words.to_str()),
        prompts=prompts,
        golden=[("text", "the cat"), ("query", "the")],
    )
    return data


def same(answers: list[Answer], ids: Sequence[Any], rows: np.ndarray) -> None:
    assert len(answers) == len(ids)
    for found, expected, row in zip(answers, ids, rows, strict=True):
        assert not isinstance(found, str), found
        assert found[0] == list(expected)
        assert found[1].shape == row.shape and abs(np.linalg.norm(found[1]) - 1) < 1e-5
        assert found[1] @ row >= 0.9999


def test_micro_is_small_and_exact(micro: tuple[Path, dict[str, Any]]) -> None:
    out, found = micro
    names = {
        "README.md",
        "Student.kt",
        "Student.swift",
        "student.bin",
        "student.h",
        "student.js",
        "student.py",
    }
    assert {path.name for path in out.iterdir()} == names
    size = (out / "student.bin").stat().st_size
    assert size == found["size_bytes"] and size + (out / "student.js").stat().st_size < 1.7e6
    assert found["texts"] == LINES and found["cosine"] >= 0.9999
    student, bundle = Student((out / "student.bin").read_bytes()), load("micro")
    golden = golden_file.read(bundle.folder, bundle.manifest)
    assert [student.tokenize(text) for text in golden.texts] == golden.ids
    rows = np.array([student.encode(text) for text in golden.texts])
    assert (rows * bundle.encode(golden.texts)).sum(1).min() >= 0.9999
    assert student.check() > 0.999999 and len(student.golden) >= 30


def test_readers_embed_as_the_python_runner(
    reader: Reader, micro: tuple[Path, dict[str, Any]], tiny: list[tuple[Path, Path]]
) -> None:
    for folder, path in ((load("micro").folder, micro[0] / "student.bin"), *tiny):
        bundle = load(folder)
        golden = golden_file.read(bundle.folder, bundle.manifest)
        roles = golden.roles or ["text"] * len(golden.texts)
        texts = [*zip(roles, golden.texts, strict=True), *(("query", text) for text in sentences(5))]
        expected = [bundle.encode(text, role=role) for role, text in texts]
        ids = [bundle.tokenize([text], role)[0] for role, text in texts]
        [(first, answers)] = reader([path], texts)
        assert float(first.split()[1]) > 0.99999
        same(answers, ids, np.array(expected))


@pytest.fixture(scope="module")
def tokenizers(
    micro: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Tokenizer, Path]]:
    """Tokenizers and the files of students with these."""
    folder = tmp_path_factory.mktemp("tokenizers")
    found = [(Tokenizer.from_file(str(load("micro").folder / "tokenizer.json")), micro[0] / "student.bin")]
    for lowercase in (True, False):
        found.append((words(lowercase), folder / f"{lowercase}.bin"))
        found[-1][1].write_bytes(packed(words(lowercase), 4, 8))
    return found


def compare_ids(reader: Reader, tokenizers: list[tuple[Tokenizer, Path]], lines: int) -> None:
    for tokenizer, path in tokenizers:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        most = tokenizer.truncation["max_length"]
        texts = adversarial_texts(special, sorted(tokenizer.get_vocab())[::10], most)[:lines]
        [(_, answers)] = reader([path], [("text", text) for text in texts], ids_only=True)
        expected = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        assert [found if isinstance(found, str) else found[0] for found in answers] == expected


def test_readers_give_the_token_ids_of_tokenizers(
    reader: Reader, tokenizers: list[tuple[Tokenizer, Path]]
) -> None:
    """By the shipped student, and by others with accents and Hangul, in lower case or not."""
    compare_ids(reader, tokenizers, LINES)


@pytest.mark.slow
def test_the_whole_corpus(reader: Reader, tokenizers: list[tuple[Tokenizer, Path]]) -> None:
    compare_ids(reader, tokenizers, 10_000)


def test_rows_without_a_head(reader: Reader, tmp_path: Path) -> None:
    """Of an odd width, in 4 and in 8 bits, with prompts: by hand from the integers that were packed."""
    tokenizer, paths = words(True), [tmp_path / "4.bin", tmp_path / "8.bin"]
    texts = [("text", "the cat"), ("query", "a dog finds"), ("document", "")]
    found = []
    for bits, path in zip((4, 8), paths, strict=True):
        data = packed(tokenizer, bits, 33, ("", "cat ", "THE the "))
        path.write_bytes(data)
        found.append([Student(data).encode(text, role) for role, text in texts])
    for (_, answers), bits, own in zip(reader(paths, texts), (4, 8), found, strict=True):
        ids = [tokenizer.encode(text).ids for text in ("the cat", "cat a dog finds", "THE the ")]
        values, scales = random_rows(tokenizer, bits, 33)
        rows = values * np.repeat(scales.astype(np.float16), 32 if bits == 4 else 33, 1)[:, :33]
        sums = np.array([rows[row].sum(0) for row in ids])
        unit = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        same(answers, ids, unit)
        assert np.allclose(own, unit, atol=1e-3)


@pytest.mark.parametrize(("blocks", "centroids"), [(3, 7), (11, 4)])
def test_product_quantized_rows(reader: Reader, tmp_path: Path, blocks: int, centroids: int) -> None:
    """By hand from the codes and integers that were packed: dimension h is of block h mod blocks."""
    tokenizer, texts = words(True), ["the cat", "a dog finds", ""]
    (tmp_path / "a.bin").write_bytes(packed_codes(tokenizer, blocks, centroids))
    ids = [tokenizer.encode(text).ids for text in texts]
    codes, values, scales = random_codes(tokenizer, blocks, centroids)
    book = values * np.repeat(scales, 32, 1)[:, :33]
    rows = np.array([[book[row[h % blocks], h] for h in range(33)] for row in codes])
    rows *= token_weights(tokenizer)[:, None]
    sums = np.array([rows[each].sum(0) for each in ids])
    unit = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    [(first, answers)] = reader([tmp_path / "a.bin"], [("text", text) for text in texts])
    assert float(first.split()[1]) > 0.99999
    same(answers, ids, unit)
    own = Student((tmp_path / "a.bin").read_bytes())
    assert np.allclose([own.encode(text) for text in texts], unit, atol=1e-3)


# What is refused


def resealed(data: bytes, at: int, new: bytes) -> bytes:
    """The file with other bytes in one place, of the size and the checksum that it says."""
    changed = bytearray(data[:at] + new + data[at + len(new) :])
    return bytes(changed[:12]) + struct.pack("<I", zlib.crc32(changed[16:])) + bytes(changed[16:])


def damaged() -> dict[str, tuple[bytes, str]]:
    """{what is wrong: (file, what a reader says)}."""
    data = packed(words(True), 4, 8)
    cut, sizes = "error damaged: cut off", "error damaged: its sizes do not fit together"
    found = {
        "empty": (b"", "error not a student file"),
        "text": (b"#!/bin/sh\necho not a student\n", "error not a student file"),
        "magic alone": (data[:8], cut),
        "header alone": (data[:START], cut),
        "half": (data[: len(data) // 2], cut),
        "a byte short": (data[:-1], cut),
        "a byte more": (data + b"\0", cut),
        "version 1": (resealed(data, 8, struct.pack("<I", 1)), "error another version of the format"),
        "another byte": (data[:-1] + bytes([data[-1] ^ 1]), "error damaged: its checksum is wrong"),
    }
    for length in range(START + HEADER.size, len(data), 211):
        shorter = resealed(data[:length], START, struct.pack("<i", length))
        found[f"{length} bytes that say so"] = shorter, "error damaged: "
    numbers = dict(zip(NAMES, HEADER.unpack_from(data, START), strict=True))
    for at, name in enumerate(NAMES):
        for value in (-(2**31), -1, 2**31 - 1, 2**30, 2**24 + 1):
            if name != "tanh":
                expected = cut if name == "size" else sizes
                found[f"{name} {value}"] = resealed(data, START + 4 * at, struct.pack("<i", value)), expected
    for name in ("tokens", "width", "dims", "before", "after", "added", "runs", "letters", "golden"):
        other = resealed(data, START + 4 * NAMES.index(name), struct.pack("<i", numbers[name] + 1))
        found[f"{name} and one"] = other, "error damaged: "
    with_codes = packed_codes(words(True), 11, 4)
    for kind, file in (("rows", data), ("codes", with_codes)):
        for matrix, at in enumerate(matrices(file)):
            before = struct.unpack_from("<5i", file, at)
            for name, place, now in zip(SIZES, range(at, at + 20, 4), before, strict=True):
                for value in (-(2**31), -1, 2**31 - 1, 2**24 + 1, *([now + 1] if name != "exponent" else [])):
                    if (name, value) != ("exponent", -1) and (name, now, value) != ("group", 1, 2):
                        changed = resealed(file, place, struct.pack("<i", value))
                        found[f"{kind}: {name} {value} of matrix {matrix}"] = changed, "error damaged: "
    code = resealed(with_codes, matrices(with_codes)[0] + 20, bytes([4]))
    return found | {"a code of no centroid": (code, sizes)}


def matrices(data: bytes) -> list[int]:
    """Where the sizes of each matrix stand."""
    h = dict(zip(NAMES, HEADER.unpack_from(data, START), strict=True))
    counts = h["before"] + h["after"] + 3 * h["runs"] + h["letters"] + h["biases"]
    at = START + HEADER.size + 4 * counts
    rows, codes, bits, group, _ = struct.unpack_from("<5i", data, at)
    size = rows * (2 * -(-h["width"] // group) + -(-h["width"] * bits // 8))
    return [at, at + 20 + h["tokens"] * codes + size]


def test_files_that_are_refused(reader: Reader, tmp_path: Path) -> None:
    cases, paths = damaged(), list[Path]()
    for number, (data, _) in enumerate(cases.values()):
        paths.append(tmp_path / f"{number}.bin")
        paths[-1].write_bytes(data)
    for (first, _), (name, (data, expected)) in zip(reader(paths, []), cases.items(), strict=True):
        assert first.startswith(expected), f"{name}: {first}"
        with pytest.raises(StudentError) as refused:
            Student(data)
        assert f"error {refused.value}".startswith(expected), name


def test_readers_survive_any_number_anywhere(reader: Reader, tmp_path: Path) -> None:
    """Numbers of all sizes written over a file, its checksum right: every reader refuses the same files, none
    of them ends in another way than by an error of its own."""
    draw, paths = random.Random(1), list[Path]()
    files = packed(words(True), 8, 3, ("the ", "", "")), packed_codes(words(True), 11, 4)
    for number in range(200):
        data = files[number % 2]
        at = draw.choice((4 * draw.randrange(4, 60), draw.randrange(START, len(data) - 4)))
        value = draw.choice((0, 1, -1, 2**31 - 1, 2**21, 0x10FFFF, 0xD800, draw.randrange(2**16)))
        paths.append(tmp_path / f"{number}.bin")
        paths[-1].write_bytes(resealed(data, at, struct.pack("<i", value)))
    texts = [("text", "The cat watched 東京 가각 é"), ("query", "x" * 200)]
    found = reader(paths, texts)
    opened = []
    for path in paths:
        try:
            student = Student(path.read_bytes())
            opened.append(student.check() <= 1.001 and len(student.encode("cat")) > 0)
        except StudentError:
            opened.append(False)
    assert [first.startswith("open") for first, _ in found] == opened
    assert 20 < sum(opened) < 180


def test_texts_that_are_refused(reader: Reader, tmp_path: Path) -> None:
    data = packed(words(True), 4, 8)
    (tmp_path / "a.bin").write_bytes(data)
    behind = "the " * 99 + "\ud83d"  # what is truncated is text too
    texts = ["", behind, "a\udc00b", "\udc00\ud83d", "\ud83d\ude42", "\0", "\ufeff\u200b", "\U0010ffff"]
    [(_, answers)] = reader([tmp_path / "a.bin"], [("text", text) for text in texts])
    are_text = [True, False, False, False, reader.encoding != "utf-8", True, True, True]
    if not reader.any_units:
        are_text[1:4] = [True, True, True]
    assert [not isinstance(found, str) for found in answers] == are_text
    refused = "error text: not UTF-8" if reader.encoding == "utf-8" else "error text: half a surrogate pair"
    assert all(str(found).startswith(refused) for found in answers if isinstance(found, str))
    with pytest.raises(StudentError, match="text: half a surrogate pair, which is not text; decode it again"):
        Student(data).encode("a\udc00b")


def test_a_text_without_tokens_is_refused(reader: Reader, tmp_path: Path) -> None:
    """Where a tokenizer adds none to a text."""
    tokenizer = words(True)
    tokenizer.post_processor = processors.TemplateProcessing("$A")
    path = tmp_path / "a.bin"
    path.write_bytes(packed(tokenizer, 4, 8))
    [(first, answers)] = reader([path], [("text", text) for text in ("", " \u0301", "the", "\ufeff")])
    expected = "error text: has no tokens; leave it out"
    assert first.startswith("open") and [answers[at] for at in (0, 1, 3)] == [expected] * 3
    assert not isinstance(answers[2], str) and answers[2][0] == tokenizer.encode("the").ids


def test_readers_are_small() -> None:
    """At most 250 lines each, without comments and blank ones."""
    for name in ("student.js", "student.h", "Student.kt", "Student.swift"):
        code = re.sub(r"/\*.*?\*/", "", (STATIC / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        lines = [line for line in map(str.strip, code.splitlines()) if line and not line.startswith("//")]
        assert len(lines) <= 250, name


SERVE = """
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { execFile } from "node:child_process";
const [folder, chromium, page] = process.argv.slice(1);
const server = createServer(({ url }, answer) => {
  const types = { "/": "text/html", "/student.js": "text/javascript" };
  answer.writeHead(200, { "content-type": types[url] ?? "application/octet-stream" });
  answer.end(url === "/" ? page : readFileSync(folder + url));
});
server.listen(0, "127.0.0.1", () => {
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=600000", "--dump-dom"];
  execFile(chromium, [...flags, `http://127.0.0.1:${server.address().port}/`], (error, out) => {
    console.log(out);
    server.close();
    server.closeAllConnections();
  });
});
"""


@missing("node")
@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_the_page_of_the_readme(micro: tuple[Path, dict[str, Any]]) -> None:
    """It shows the cosine that Python gives, in a browser."""
    [script] = re.findall(r"```html\n(.*?)```", (STATIC / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    page = '<!doctype html><link rel="icon" href="data:,"><body>' + script
    page = page.replace("console.log(", "document.body.textContent = String(")
    shown = finished("node", "--input-type=module", "-e", SERVE, micro[0], CHROMIUM, page).decode()
    a, b = load("micro").encode(["How do I reset it?", "Hold the button."])
    [cosine] = re.findall(r"<body>(-?[\d.]+)", shown)
    assert abs(float(cosine) - a @ b) < 0.01
