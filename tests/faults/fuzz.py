"""What is fuzzed: how a good file is damaged, and what reads it. Each reader accepts what it gets, or refuses
it by an error for the user."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st

from edgedistill import files, recipe, run
from edgedistill.errors import CheckFailed, UserError, border
from edgedistill.runtime import bundle, golden_file, manifest
from edgedistill.runtime.manifest import digest
from edgedistill.students import model_folder, sentence_transformer
from tests.data.test_input_files import ALL_READERS, FUZZED

Draw = Callable[[st.SearchStrategy[Any]], Any]
REFUSALS = (UserError, CheckFailed)
LONGEST_S = 120.0  # of one input
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_subnormal=False)
    | st.text(max_size=8)
    | st.sampled_from(["../x", "w8", "Sequence", "Regex"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["type", "file"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = st.lists(st.integers(0, 40), min_size=1, max_size=5)


def changed(value: Any, place: list[int], new: Any) -> Any:
    """A copy of a JSON value with one value inside replaced, or removed where it is a key's; place: which one
    on each level."""
    if not place or not isinstance(value, dict | list) or not value:
        return new
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[place[0] % len(keys)]
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[key] = changed(value[key], place[1:], new)
    return copied


@dataclass(frozen=True)
class Target:
    """write: damage the good file, in a folder of its own, as drawn. read: what commands do with it."""

    write: Callable[[Path, Draw], Any]
    read: Callable[[Path], Any]


def damaged(draw: Draw, data: bytes) -> bytes:
    """Bytes overwritten, put in or cut out at one to three places, or the end cut off. Places near the start,
    where most formats have their headers, are the likeliest."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(200, len(data))) | st.integers(0, len(data)))
        new = draw(
            st.binary(max_size=12)
            | st.sampled_from([b"\0", b"\xff" * 8, b"\x80" * 10, b"[" * 3000, b"9" * 5000])
        )
        gone = draw(st.sampled_from((0, 1, len(new), 40)))
        data = draw(st.sampled_from((data[:at] + new + data[at + gone :],) * 4 + (data[:at],)))
    return data


def edited(draw: Draw, value: Any) -> Any:
    for _ in range(draw(st.integers(1, 2))):
        value = changed(value, draw(PLACES), draw(JSON))
    return value


def json_file(name: str) -> Callable[[Path, Draw], None]:
    """A file of a bundle: a value in it is another one or, now and then, its bytes are damaged; its hash is
    right."""

    def write(folder: Path, draw: Draw):
        data = (folder / name).read_bytes()
        if draw(st.integers(0, 4)):
            data = json.dumps(edited(draw, json.loads(data))).encode()
        else:
            data = damaged(draw, data)
        rehash(folder, name, data)

    return write


def rehash(folder: Path, name: str, data: bytes):
    """Write a file of a bundle, with its hash in the manifest; a manifest with its own digest."""
    (folder / name).write_bytes(data)
    if name == "manifest.json":
        try:
            described = json.loads(data)
            described["digest"] = digest(described)
        except (ValueError, TypeError, RecursionError, UnicodeError):
            return
        (folder / name).write_text(json.dumps(described))
        return
    described = files.read_json(folder / "manifest.json")
    described["files"][name] = hashlib.sha256(data).hexdigest()
    for entry in described["precisions"].values():
        if entry["file"] == name:
            entry |= {"sha256": described["files"][name], "size_bytes": len(data)}
    files.write_json(folder / "manifest.json", {**described, "digest": digest(described)})


def a_graph(folder: Path, draw: Draw):
    name = draw(
        st.sampled_from(
            [each["file"] for each in files.read_json(folder / "manifest.json")["precisions"].values()]
        )
    )
    rehash(folder, name, damaged(draw, (folder / name).read_bytes()))


def opened(folder: Path):
    """As load and verify open a bundle, in each precision."""
    for precision in manifest.read(folder)["precisions"]:
        bundle.load(folder, precision, threads=1).encode(["a text", "日 \U0001f642 ﬁ", "a" * 5_000])


def golden(folder: Path):
    golden_file.read(folder, manifest.read(folder))


def a_recipe(folder: Path, draw: Draw):
    name = draw(st.sampled_from(sorted(files.shipped("recipe"))))
    text = files.shipped("recipe")[name].read_bytes()
    if draw(st.booleans()):
        text = yaml.safe_dump(edited(draw, yaml.safe_load(text)), allow_unicode=True).encode()
    else:
        text = damaged(draw, text)
    (folder / "x.yaml").write_bytes(text)


def recipe_read(folder: Path):
    recipe.read(folder / "x.yaml")


def an_input(name: str) -> Callable[[Path, Draw], None]:
    return lambda folder, draw: (folder / name).write_bytes(damaged(draw, FUZZED[name]())) and None


def inputs_read(folder: Path):
    """By every command that reads texts; of the first refusal, the others still read on."""
    (path,) = (each for each in folder.iterdir() if each.name in FUZZED)
    refused = None
    for read in ALL_READERS.values():
        try:
            read(path)
        except UserError as error:
            refused = error
    if refused:
        raise refused


def an_array(folder: Path, draw: Draw):
    """Headers of .npy as nobody writes them: other types, objects among them, other sizes and orders."""
    kind = draw(
        st.sampled_from(
            ["<f4", "|O", ">f8", "<U8", "|V9", "<c8", "|b1", "<M8[s]", "<f2", "[('a', '<f4')]", "O"]
        )
        | st.text(max_size=5)
    )
    shape = tuple(draw(st.lists(st.integers(-2, 9) | st.sampled_from([2**31, 2**63, 10**30]), max_size=3)))
    header = repr({"descr": kind, "fortran_order": draw(st.booleans()), "shape": shape}).encode() + b"\n"
    version = draw(st.sampled_from([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"]))
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    body = draw(st.sampled_from([np.eye(5, 8, dtype=np.float32).tobytes(), pickled(), b""]))
    data = b"\x93NUMPY" + version + size + header + body
    (folder / "a.npy").write_bytes(damaged(draw, data) if draw(st.booleans()) else data)


def pickled() -> bytes:
    """An array of objects, which would make a file where it is unpickled."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Armed()], object), allow_pickle=True)
    return buffer.getvalue()[128:]


MARKER = "unpickled-by-edgedistill"


class Armed:
    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


def safetensors(path: str) -> Callable[[Path, Draw], None]:
    """The header's JSON edited, its length right, or bytes damaged."""

    def write(folder: Path, draw: Draw):
        data = (folder / path).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        if draw(st.booleans()):
            header = json.dumps(edited(draw, json.loads(data[8:end]))).encode()
            size = draw(st.sampled_from([len(header), len(header), 0, 2**63, 2**64 - 1, len(header) + 1]))
            data = size.to_bytes(8, "little") + header + data[end:]
        else:
            data = damaged(draw, data)
        (folder / path).write_bytes(data)

    return write


@border()
def run_opened(folder: Path):
    found = run.open_run(folder)
    found.student()
    found.tokenizer()


def a_run(folder: Path, draw: Draw):
    """The JSON of a run's folder."""
    name = draw(
        st.sampled_from(["student.json", "student.json", "run.json", "tokenizer/tokenizer_config.json"])
    )
    (folder / name).write_text(json.dumps(edited(draw, files.read_json(folder / name))))


@border()
def model_opened(folder: Path):
    sentence_transformer.read(model_folder.read(folder), None)


def a_config(folder: Path, draw: Draw):
    name = draw(
        st.sampled_from(["config.json", "modules.json", "tokenizer_config.json", "1_Pooling/config.json"])
    )
    (folder / name).write_text(json.dumps(edited(draw, files.read_json(folder / name))))


TARGETS = {
    "recipes": Target(a_recipe, recipe_read),
    "manifest.json": Target(json_file("manifest.json"), opened),
    "parity.json": Target(json_file("parity.json"), golden),
    "tokenizer.json": Target(json_file("tokenizer.json"), opened),
    "ONNX graphs": Target(a_graph, opened),
    ".npy": Target(an_array, inputs_read),
    "safetensors of runs": Target(safetensors("student.safetensors"), run_opened),
    "JSON of runs": Target(a_run, run_opened),
    "safetensors of models": Target(safetensors("model.safetensors"), model_opened),
    "configurations of models": Target(a_config, model_opened),
    **{f"texts in {name[1:]}": Target(an_input(name), inputs_read) for name in FUZZED if name != "a.npy"},
}


def source(name: str, bundles: Path, runs: Path, models: Path) -> Path | None:
    """The good folder whose files a target damages."""
    for what, folder in {"of runs": runs, "of models": models, ".json": bundles, "ONNX": bundles}.items():
        if what in name and "texts" not in name:
            return folder
    return None


def attempt(target: Target, good: Path | None, scratch: Path, draw: Draw) -> bool:
    """Damage and read. Returns whether it was refused."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(good, scratch) if good else scratch.mkdir(parents=True)
    target.write(scratch, draw)
    files._sha256.cache_clear()
    try:
        target.read(scratch)
    except REFUSALS as error:
        lines = error.problems if isinstance(error, UserError) else str(error).splitlines()
        assert all(line.isprintable() for line in lines), lines
        return True
    finally:
        assert not Path(MARKER).exists(), "an array of objects was unpickled"
    return False
