"""The core, export/core: token ids of the tokenizer, embeddings of the bundle, what it refuses, and what
neither files, texts nor a shortage of memory may do to it."""

from __future__ import annotations

import json
import lzma
import random
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from edgedistill import files, load
from edgedistill.device import student_file, tokenizer_tables
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.runtime.compact import compact
from tests.conftest import sentences
from tests.device.adversarial import adversarial_texts
from tests.export.test_export import SIZES, make_run
from tests.runners.core.student import COMPILER, CORE, WARNINGS, CoreError, CoreStudent, library, run

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
TORTURE, CALLER = (Path(__file__).parent / "core" / name for name in ("torture.c", "student.mjs"))
PLAIN = sentences(60)
PLAIN_TAIL = {"head": None, "tanh": False}
LEXICAL = {"lexical": 0.3, "head": {"dims": 32, "bias": True}}
NEW_GELU = {"hidden_act": "gelu_new"}
CONFIG = {**SIZES, "vocab_size": 200, "pad_token_id": 0}
# kinds of students, which have between them all that a file has a place for
STUDENTS: dict[str, dict[str, Any]] = {
    "bert": {"kind": "bert"},
    "cls": {"kind": "bert", "pooling": "cls", "head": None},
    "pooler": {"kind": "bert", "pooling": "cls_pooler", "head": None},
    "max": {"kind": "bert", "pooling": "max", "tanh": True},
    "last": {"kind": "bert", "pooling": "last"},
    "codes": {"kind": "bert", "pq_bytes": 8},
    "narrow": {"kind": "bert", "bottleneck": 20, **LEXICAL},
    "relu": {"kind": "bert", "config": {**CONFIG, "hidden_act": "relu", "num_attention_heads": 1}},
    "odd": {"kind": "bert", "config": {**CONFIG, "hidden_size": 36, "intermediate_size": 50, **NEW_GELU}},
    "wide": {"kind": "bert", "config": {**CONFIG, "hidden_size": 128}},
    "from-padding": {"kind": "bert", "position_ids": "pad", "pad": 0},
    "recurrent": {"kind": "recurrent", "repeats": 3},
    "no-layers": {"kind": "bert", "config": {**CONFIG, "num_hidden_layers": 0}},
    "static": {"kind": "static"},
    "static-table": {"kind": "static", "head": None},
    "static-codes": {"kind": "static", "pq_bytes": 16, "head": None},
    "bilstm": {"kind": "bilstm"},
    "bilstm-last": {"kind": "bilstm", "readout": "last", "layers": 2, "tanh": False},
    "bilstm-mean": {"kind": "bilstm", "readout": "mean", "hidden": 24, "pq_bytes": 8, **PLAIN_TAIL},
}  # fmt: skip
IN_ALL = ("narrow", "codes", "wide", "bilstm")  # precisions; w4 stores 128 floats and more in float16
# lowest and mean cosine to the bundle. What is rounded to 8 bits may be rounded the other way where two
# implementations differ in the last bit of a float; in tiny students one such step counts
ALIKE = {"fp32": (0.99999, 0.99999), "w8": (0.999, 0.9998), "w4": (0.999, 0.9998), "int8": (0.995, 0.9995)}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return library(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root, made = tmp_path_factory.mktemp("students"), dict[str, Path]()

    def export(name: str) -> Path:
        if name not in made:
            torch.manual_seed(3)
            source, made[name] = make_run(root / "runs" / name, **STUDENTS[name]), root / name
            precisions = list(ALIKE) if name in IN_ALL else ["fp32", "int8"]
            bundle_writer.export(source, precisions, made[name], lambda line: None)
        return made[name]

    return export


@cache
def file_of(name: Path | str) -> bytes:
    with load(name, threads=1) as opened:
        return student_file.content(opened)


def stamped(data: bytes) -> bytes:
    """With a right checksum."""
    return data[:12] + struct.pack("<I", zlib.crc32(data[16:])) + data[16:]


def odd_texts(count: int) -> list[str]:
    """Texts of characters from all over Unicode, the same each time: marks, letters of Hangul, graphemes."""
    draw, found = random.Random(1), []
    near = [
        *range(32, 127),
        *map(ord, "\u0300\u0308\u0323\u0345\u1100\u1161\u11a8가각\u200d\u0600\ufe0f½▁\r\n\t\u3000"),
    ]
    rare = [0x1D165, 0x1D16E, 0x1B44, 0x302E, 0xFB1D, 0x1F468, 0x1F3FD, 0x903, 0x94D, 0x915]
    for _ in range(count):
        text = ""
        for _ in range(draw.randrange(1, 12)):
            kind = draw.random()
            code = draw.choice(near) if kind < 0.3 else draw.randrange(0x80, 0x3100)
            if kind > 0.6:
                code = (
                    draw.choice([*rare, 0xF900 + draw.randrange(256)])
                    if kind > 0.9
                    else draw.randrange(0x110000)
                )
            text += chr(code) if not 0xD800 <= code < 0xE000 else "A"
        found.append(text)
    return found


def same_ids(student: CoreStudent, tokenizer: Tokenizer, texts: list[str]):
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        if encoding.ids:
            assert student.tokenize(text) == encoding.ids, ascii(text)


def adversarial(tokenizer: Tokenizer, max_tokens: int, count: int) -> list[str]:
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    words = sorted(tokenizer.get_vocab())
    texts = adversarial_texts(special, words[:: max(1, len(words) // 500)], max_tokens)
    return [*texts[:100], *texts[100 :: max(1, len(texts) // count)]]


@pytest.mark.parametrize("name", STUDENTS)
def test_ids_and_embeddings_are_the_bundles(name: str, exported: Callable[..., Path], core: Any):
    folder = exported(name)
    for precision in json.loads((folder / "manifest.json").read_text())["precisions"]:
        least, mean = ALIKE[precision]
        with load(f"{folder}:{precision}", threads=1) as opened:
            student = CoreStudent(core, student_file.content(opened))
            same_ids(student, opened._tokenizer, adversarial(opened._tokenizer, opened.max_tokens, 60))
            cosines = (opened.encode(PLAIN) * student.embed(PLAIN)).sum(1)
        assert cosines.min() >= least and cosines.mean() >= mean, precision
        worst, asked = student.check()
        assert worst >= asked
        student.close()


@pytest.mark.parametrize("name", ["nano", "micro", "multi", "small"])
def test_shipped_students(name: str, core: Any):
    student = CoreStudent(core, file_of(name))
    with load(name, threads=1) as opened:
        texts = adversarial(opened._tokenizer, opened.max_tokens, 1500)
        same_ids(student, opened._tokenizer, [*texts, *odd_texts(1500)])
        cosines = (opened.encode(PLAIN) * student.embed(PLAIN)).sum(1)
    # many wide layers make more of what the last bit of a float rounds, and a mean that is left out, too
    mean, least = {"micro": (0.9999, 0.999), "multi": (0.998, 0.995)}.get(name, (0.9998, 0.999))
    assert cosines.mean() >= mean and cosines.min() >= least
    worst, asked = student.check()
    assert worst >= asked
    student.close()


@pytest.mark.parametrize("mean", [False, True])  # bits may be less a mean
def test_compact_embeddings_and_cuts(mean: bool, core: Any, tmp_path):
    folder = shutil.copytree(files.shipped("bundle")["micro"].parent, tmp_path / "micro")
    manifest = files.read_json(folder / "manifest.json")
    if mean:
        manifest["calibration"] = {"mean": np.linspace(-0.1, 0.1, 384).tolist(), "int8_range": 13.76}
        bundle_writer.seal(folder, manifest)
    with load(folder, threads=1) as opened:
        student, calibration = CoreStudent(core, student_file.content(opened)), opened.calibration
    assert (calibration.mean is not None) == mean and student.dims == [student.size]
    for row in student.embed(PLAIN[:8]):
        core.ed_cut(row.ctypes.data, student.size)
        for precision in ("int8", "binary"):
            assert np.array_equal(
                student.compact(row, precision), compact(row[None], precision, calibration)[0]
            )
        core.ed_cut(row.ctypes.data, 64)
        assert np.linalg.norm(row[:64]) == pytest.approx(1)
        short = compact(row[None, :64], "binary", calibration)[0]
        assert np.array_equal(student.compact(row[:64], "binary"), short)
    student.close()


def test_prompts_belong_to_roles(exported: Callable[..., Path], core: Any, tmp_path):
    folder = tmp_path / "asked"
    shutil.copytree(exported("static"), folder)
    manifest = files.read_json(folder / "manifest.json")
    bundle_writer.seal(folder, {**manifest, "query_prompt": "the cat "})
    student = CoreStudent(core, file_of(folder))
    assert (
        student.tokenize("eats", 1) == student.tokenize("the cat eats") == student.tokenize("the cat eats", 2)
    )
    with pytest.raises(CoreError, match="role"):
        student.tokenize("eats", 3)
    student.close()


@pytest.mark.parametrize("text", [b"\xff", b"a \xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80"])
def test_what_is_not_utf8_is_refused(text: bytes, exported: Callable[..., Path], core: Any):
    student = CoreStudent(core, file_of(exported("static")))
    with pytest.raises(CoreError, match="UTF-8"):
        student.embed([text])
    student.close()


def test_any_text_has_an_embedding(core: Any):
    for name in ("micro", "multi"):
        student = CoreStudent(core, file_of(name))
        rows = student.embed(
            ["", "\0 a\0b", "x" * 1_500_000, "长" * 100_000, " " * 1_000_000, "a\u0300" * 50_000]
        )
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
        student.close()


def test_damaged_files_are_refused(exported: Callable[..., Path], core: Any):
    data, four_bits = file_of(exported("bert")), file_of(f"{exported('wide')}:w4")
    place = four_bits.index(struct.pack("<4i", 4, 384, 128, 128)) + 36  # two of an array
    place += -place % 64
    changed = {
        "not a student": b"PK" + data[2:],
        "older version": data[:8] + struct.pack("<I", 4) + data[12:],
        "newer version": data[:8] + struct.pack(">I", 6) + data[12:],  # of the other endianness
        "cut off": data[:-64],
        "pair of encoders": data + bytes(-len(data) % 64) + data,
        "checksum": data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
        "do not fit": stamped(data[:32] + struct.pack("<i", 10**6) + data[36:]),
        "parts do not": stamped(four_bits[:place] + b"\0" + four_bits[place + 1 :]),  # another sum
    }
    for fact, damaged in changed.items():
        with pytest.raises(CoreError, match=fact):
            CoreStudent(core, damaged)
    for end in range(0, len(data), len(data) // 40):
        with pytest.raises(CoreError):
            CoreStudent(core, data[:end])


def test_no_file_text_or_shortage_of_memory_ends_it(exported: Callable[..., Path], tmp_path):
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program, file, texts = tmp_path / "torture", tmp_path / "student.bin", tmp_path / "texts"
    odd = "\0".join([*odd_texts(30), "[CLS] a[SEP]", "a" * 5000, ""])
    texts.write_bytes(odd.encode() + b"\0\xff\xfe\0\xc3")
    run(COMPILER, "-std=c99", "-O1", "-g", *checks, f"-I{CORE}", TORTURE, "-o", program, "-lm")
    for name in ("narrow", "static-codes", "bilstm-last"):
        file.write_bytes(file_of(f"{exported(name)}:{'w4' if name == 'narrow' else 'int8'}"))
        assert "changed files were opened" in run(program, file, texts, 1, 150)


def test_threads_share_a_student(exported: Callable[..., Path], tmp_path):
    program, file = tmp_path / "threads", tmp_path / "student.bin"
    file.write_bytes(file_of(f"{exported('narrow')}:int8"))
    sources = [TORTURE.with_name("threads.c"), CORE / "edgedistill.c"]
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{CORE}"]
    run(COMPILER, *options, *sources, "-o", program, "-lm")
    assert run(program, file) == "the same\n"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_have_nothing_to_say(compiler: str):
    """In the oldest and the newest standard; the library is compiled as C99, with what the optimizer sees."""
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    for language in ("c99", "c++20"):
        source = ["-x", "c++" if "+" in language else "c", CORE / "edgedistill.c"]
        assert run(compiler, *WARNINGS, f"-std={language}", "-fsyntax-only", *source) == "", language


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node")
@pytest.mark.parametrize("name", ["nano", "multi"])
def test_webassembly_is_the_same(name: str, core: Any, tmp_path):
    file = tmp_path / "student.bin"
    file.write_bytes(file_of(name))
    student, texts = CoreStudent(core, file.read_bytes()), [*PLAIN[:20], *odd_texts(60), ""]
    found = json.loads(run("node", CALLER, file, stdin=json.dumps(texts)))
    rows = np.array(found["rows"], np.float32)
    assert found["ids"] == [student.tokenize(text) for text in texts]
    cosines = (rows * student.embed(texts)).sum(1)
    assert cosines.min() > 0.995 and cosines.mean() > 0.9998  # roundings, as in ALIKE
    for precision, values in (("int8", found["int8"]), ("binary", found["bits"])):
        assert len(values) == 20
        assert np.array_equal(values, [student.compact(row, precision) for row in rows[: len(values)]])
    assert found["dims"] == [384] and found["long"] == 384 and found["tight"] == found["rows"][0]
    assert found["check"]["worst"] >= found["check"]["least"]
    facts = ["surrogate", "role", "dims", "precision", "checksum", "read (ENOENT)", "not enough memory"]
    for error, fact in zip(found["errors"], facts, strict=True):
        assert error.startswith("StudentError: ") and fact in error
    student.close()


@pytest.mark.parametrize(("name", "release"), [("edgedistill.wasm", 14), ("edgedistill-relaxed.wasm", 16)])
def test_webassembly_is_built_to_the_same_bytes(name: str, release: int, tmp_path):
    if not shutil.which(f"clang-{release}") or not shutil.which(f"wasm-ld-{release}"):
        pytest.skip(f"needs clang-{release} and lld-{release}")
    shutil.copytree(CORE, tmp_path / "core")
    run("make", "-B", "-C", tmp_path / "core", name)
    assert (tmp_path / "core" / name).read_bytes() == (CORE / name).read_bytes()


@pytest.fixture(scope="module")
def golden(
    exported: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], list[str]]:
    """The instructions with which the golden texts of some students come out right, as a compiler and an
    emulator have it."""
    folder, programs = tmp_path_factory.mktemp("golden"), dict[str, Path]()
    students = [folder / f"{name}.bin" for name in ("narrow", "bilstm", "static")]
    for file in students:
        file.write_bytes(file_of(f"{exported(file.stem)}:{'w4' if file.stem == 'narrow' else 'int8'}"))
    sources = [TORTURE.with_name("golden.c"), CORE / "edgedistill.c"]

    def asked(compiler: str, starter: str) -> list[str]:
        program = programs.setdefault(compiler, folder / f"{len(programs)}.exe")
        options = [*WARNINGS, "-O2", "-static", f"-I{CORE}"]
        assert program.exists() or run(compiler, *options, *sources, "-o", program, "-lm") == ""
        lines = [run(*starter.split(), program, file).split() for file in students]
        assert [line[0] for line in lines] == ["OK"] * len(students)
        return [line[-1] for line in lines]

    return asked


@pytest.mark.parametrize(
    ("compiler", "emulator", "instructions"),
    [
        (str(COMPILER), "qemu-x86_64-static -cpu core2duo", "sse2"),
        (str(COMPILER), "qemu-x86_64-static -cpu max", "avx2"),
        ("aarch64-linux-gnu-gcc", "qemu-aarch64-static -cpu cortex-a53", "neon"),
        ("aarch64-linux-gnu-gcc", "qemu-aarch64-static -cpu max", "dotprod"),
        ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "scalar"),
        ("riscv64-linux-gnu-gcc", "qemu-riscv64-static", "scalar"),
    ],
)
def test_other_processors(
    compiler: str, emulator: str, instructions: str, golden: Callable[[str, str], list[str]]
):
    if not shutil.which(compiler) or not shutil.which(emulator.split()[0]):
        pytest.skip(f"needs {compiler} and {emulator.split()[0]}")
    assert set(golden(compiler, emulator)) == {instructions}


WINE = shutil.which("/usr/lib/wine/wine64") or "wine"


@pytest.mark.parametrize(
    ("compiler", "starter"), [("musl-gcc", "env"), ("x86_64-w64-mingw32-gcc", WINE)], ids=["musl", "windows"]
)
def test_other_systems(
    compiler: str,
    starter: str,
    golden: Callable[[str, str], list[str]],
    tmp_path,
    monkeypatch,
):
    if not shutil.which(compiler) or not shutil.which(starter):
        pytest.skip(f"needs {compiler} and {starter}")
    for name, value in (
        ("WINEPREFIX", str(tmp_path)),
        ("WINEDEBUG", "-all"),
        ("WINEDLLOVERRIDES", "mscoree=;mshtml="),
    ):
        monkeypatch.setenv(name, value)
    golden(compiler, starter)


@pytest.mark.skipif(
    not Path("/usr/include/sqlite3ext.h").exists() or not shutil.which("sqlite3"),
    reason="needs SQLite's headers and shell",
)
def test_in_sql(exported: Callable[..., Path], core: Any, tmp_path):
    file, extension = tmp_path / "student.bin", tmp_path / "edgedistill.so"
    file.write_bytes(file_of(exported("static")))
    sources = [CORE / "sqlite" / "edgedistill_sqlite.c", CORE / "edgedistill.c"]
    assert run(COMPILER, *WARNINGS, "-shared", "-fPIC", f"-I{CORE}", *sources, "-o", extension, "-lm") == ""
    student = CoreStudent(core, file.read_bytes())
    rows = student.embed(PLAIN[:2])

    def lines(*calls: str) -> list[str]:
        script = [f".load {extension}", *[f"select {call};" for call in calls]]
        done = subprocess.run(
            ["sqlite3", ":memory:"], input="\n".join(script), capture_output=True, text=True, check=False
        )
        return (done.stdout + done.stderr).splitlines()

    opened, text, other = f"embed_open('{file}')", *[f"'{each}'" for each in PLAIN[:2]]
    calibration = load(exported("static")).calibration
    blobs = [rows[0], *[compact(rows, precision, calibration)[0] for precision in ("int8", "binary")]]
    called = [
        f"hex({call})"
        for call in (f"embed({text})", f"embed({text}, 'int8')", f"embed_document({text}, 'bits')")
    ]
    found = lines(opened, *called, "embed(null) is null", f"cosine(embed_query({text}), embed({other}))")
    assert json.loads(found[0])["precision"] == "int8"
    assert found[1:5] == [*[blob.tobytes().hex().upper() for blob in blobs], "1"]
    assert float(found[5]) == pytest.approx(float(rows[0] @ rows[1]), abs=1e-6)
    wrong = lines("embed('a')", opened, "embed('a', 'w4')", "embed_open('/none')", "cosine(x'00', x'00')")
    for fact in ("no student", "precision: float32", "/none: not readable", "not two float32"):
        assert any(fact in line for line in wrong)
    student.close()


HEADERS = next(iter(sorted(Path("/usr/lib/jvm").glob("*/include/jni.h"))), None)


@pytest.mark.skipif(HEADERS is None or not shutil.which("javac"), reason="needs a JDK")
def test_on_the_jvm(exported: Callable[..., Path], core: Any, tmp_path):
    assert HEADERS is not None
    file, places = (
        tmp_path / "student.bin",
        [f"-I{each}" for each in (HEADERS.parent, HEADERS.parent / "linux", CORE)],
    )
    file.write_bytes(file_of(exported("static")))
    sources = [CORE / "jvm" / "jni.c", CORE / "edgedistill.c"]
    library_ = tmp_path / "libedgedistill.so"
    assert run(COMPILER, *WARNINGS, "-shared", "-fPIC", *places, *sources, "-o", library_, "-lm") == ""
    run("javac", "-d", tmp_path, CORE / "jvm" / "Student.java", TORTURE.with_name("Caller.java"))
    options = [f"-Djava.library.path={tmp_path}", "-cp", tmp_path]
    lines = run("java", *options, "Caller", file, PLAIN[0]).splitlines()
    student = CoreStudent(core, file.read_bytes())
    assert json.loads(lines[0]) == student.tokenize(PLAIN[0])
    assert json.loads(lines[1]) == pytest.approx(student.embed(PLAIN[:1])[0].tolist(), abs=1e-5)
    assert json.loads(lines[2]) == pytest.approx(student.check(), abs=1e-6)
    assert lines[3].startswith("not a student")
    student.close()


@pytest.mark.skipif(not shutil.which("rustc"), reason="needs rustc")
def test_in_rust(exported: Callable[..., Path], core: Any, tmp_path):
    file, compiled, program = (tmp_path / name for name in ("student.bin", "edgedistill.o", "example"))
    file.write_bytes(file_of(exported("static")))
    run(COMPILER, "-c", CORE / "edgedistill.c", "-o", compiled)
    linked = [f"-Clink-arg={compiled}", "-Clink-arg=-lm"]
    run("rustc", CORE / "rust" / "example.rs", *linked, "-o", program)
    student = CoreStudent(core, file.read_bytes())
    assert json.loads(run(program, file, PLAIN[0])) == pytest.approx(student.embed(PLAIN[:1])[0], abs=1e-6)
    student.close()


def test_the_first_example_of_its_page_runs_as_written(tmp_path):
    page = (CORE / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```c\n(.*?)```.*?```sh\n(.*?)```", page, re.DOTALL)
    (tmp_path / "app.c").write_text(example[1])  # type: ignore[index]
    student_file.write("nano", tmp_path / "nano-core", lambda line: None)
    cosine = run("sh", "-ec", f"cd {tmp_path}\n{example[2]}")  # type: ignore[index]
    assert abs(float(cosine) - float(page.partition("and a text, ")[2][:4])) < 0.011


def test_a_file_of_each_version_is_kept_and_opens(core: Any):
    """Files that an earlier edgedistill wrote; one of another version is refused by the version's age."""
    for version in (5, 6):
        data = lzma.decompress(TORTURE.with_name(f"version-{version}.bin.xz").read_bytes())
        student = CoreStudent(core, data)
        worst, asked = student.check()
        assert worst >= asked and data[8] == version
        student.close()
    for version in (0, 3, 4, 7, 2**32 - 1):
        age = "older version of the format than 5" if version < 5 else "newer version of the format than 6"
        with pytest.raises(CoreError, match=f"an? {age};"):
            CoreStudent(core, data[:8] + struct.pack("<I", version) + data[12:])


def test_what_the_file_has_no_place_for_is_named(exported: Callable[..., Path], tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(exported("static"), folder)
    words = json.loads((folder / "tokenizer.json").read_text())
    changes = {
        "Lowercase": {"normalizer": {"type": "Lowercase"}},
        "BPE": {"model": {"type": "BPE"}},
        "left": {"truncation": {"direction": "Left"}},
        "single word": {"added_tokens": [{**words["added_tokens"][0], "single_word": True}]},
    }
    for fact, change in changes.items():
        found = tokenizer_tables.read(
            Tokenizer.from_file(str(folder / "tokenizer.json")), words | change, 200
        )
        assert isinstance(found, list) and any(fact in each for each in found)
    with pytest.raises(UserError, match="pairs of texts"):
        student_file.content(_Pair())  # type: ignore[arg-type]


class _Pair:
    manifest = {"name": "pair"}  # noqa: RUF012
    pair = True
