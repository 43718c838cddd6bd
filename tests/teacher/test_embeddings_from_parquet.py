"""Embeddings that others have computed are read from Parquet, compared with the teacher, and written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from edgedistill import recipe
from edgedistill.cli import app
from edgedistill.errors import CheckFailed, UserError
from edgedistill.session import Session
from edgedistill.teacher import embedding_cache
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.teacher.precomputed_embeddings import PrecomputedEmbeddings
from tests.conftest import World, sentences

TEXTS = sentences(60)


def opened(world: World, pattern: Path, **more: Any) -> PrecomputedEmbeddings:
    return PrecomputedEmbeddings(recipe.Teacher(embeddings=str(pattern), **more), world.data)


def written(folder: Path, rows: np.ndarray, hashed: bool = True, dtype: Any = np.float16) -> Path:
    """Two files of 40 and 20 rows."""
    for name, part in (("a", slice(0, 40)), ("b", slice(40, 60))):
        values = pa.array(rows[part].astype(dtype).ravel())
        embeddings = pa.FixedSizeListArray.from_arrays(values, rows.shape[1])
        keys: Any = TEXTS[part]
        if hashed:
            keys = embedding_cache.text_hashes(keys).view(np.int64)
        parquet.write_table(pa.table({"key": pa.array(keys), "v": embeddings}), folder / f"{name}.parquet")
    return folder / "*.parquet"


@pytest.fixture
def rows(world: World) -> np.ndarray:
    return TeacherEncoder(world.spec().teacher).embed(TEXTS)


@pytest.mark.parametrize("hashed", [True, False], ids=["hashes", "texts"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_several_files_of_hashes_or_texts(world: World, tmp_path, rows: np.ndarray, hashed: bool, dtype: Any):
    pattern = written(tmp_path, 3 * rows, hashed, dtype)
    found = opened(world, pattern, text_column="key", embedding_column="v")
    assert np.abs(found.embed(TEXTS[::-1]) - rows[::-1]).max() < 1e-3
    with pytest.raises(UserError, match=r'1 of 2 texts that were looked up are not in it, .* "else"'):
        found.embed([TEXTS[0], "else"])


def test_they_are_compared_with_the_model(world: World, tmp_path, rows: np.ndarray):
    of = {"text_column": "key", "embedding_column": "v", "model": str(world.teacher), "max_tokens": 32}
    lines = list[str]()
    found = opened(world, written(tmp_path, rows), **of)
    found.prepare(Session(log=lines.append))
    found.embed(TEXTS)
    found.embed(TEXTS)
    assert [line.split(" to ")[0] for line in lines[1:]] == [f"teacher: 60 texts agree with {world.teacher}"]
    other = rows.copy()
    other[7] = rows[8]
    with pytest.raises(
        CheckFailed, match=rf'a\.parquet: the cosine .*"{TEXTS[7][:30]}.* wanted 0\.99\); correct'
    ):
        opened(world, written(tmp_path, other), **of).embed(TEXTS)
    with pytest.raises(UserError, match=r"embeddings: 16 dimensions, and .* has 32; name the model that"):
        opened(world, written(tmp_path, rows[:, :16]), **of).embed(TEXTS)


def test_what_others_wrote_wrongly(world: World, tmp_path, rows: np.ndarray):
    of = {"text_column": "key", "embedding_column": "v"}
    pattern = written(tmp_path, rows)
    shorter = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(8, np.float32)), 8)
    parquet.write_table(pa.table({"key": pa.array([1], pa.uint64()), "v": shorter}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c\.parquet: 8 dimensions, and a\.parquet has 32; give embeddings"):
        opened(world, pattern, **of).embed(TEXTS)
    null = pa.table({"key": pa.array([None, 1], pa.uint64()), "v": pa.array([[1.0], [1.0]])})
    parquet.write_table(null, tmp_path / "d.parquet")
    with pytest.raises(UserError, match=r"d\.parquet: column 'key' has a hash that is null; write that row"):
        opened(world, tmp_path / "d.parquet", **of).embed(TEXTS)
    for name in "xy":
        np.save(tmp_path / f"{name}.npy", rows)
    with pytest.raises(
        UserError, match=r"2 files match .*, and only .parquet files may be several; name one .npy"
    ):
        opened(world, tmp_path / "*.npy")
    with pytest.raises(UserError, match=r"teacher.embeddings: no file .*none\*.parquet; check the name"):
        opened(world, tmp_path / "none*.parquet")


def test_a_cache_that_was_written_out_trains_the_same_student(world: World, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("edgedistill.data.corpus.SHARD", 200)
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    random = {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear"}
    student = {
        **random,
        "weights": "random",
        "embeddings": {"from": "random"},
        "tokenizer": str(world.teacher),
    }
    for name, teacher in (
        ("model", {"model": str(world.teacher), "max_tokens": 32}),
        ("file", {"embeddings": str(tmp_path / "out/teacher/*.parquet"), "text_column": "hash"}),
    ):
        described = world.recipe(name=name, teacher=teacher, student=student)
        (tmp_path / f"{name}.yaml").write_text(json.dumps(described), encoding="utf-8")

    def ran(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--data", str(world.data)], catch_exceptions=False)

    assert (
        ran("cache", "model.yaml", "--parquet", "out").stdout
        == "teacher: 3 of 3 shards\ntokens: 3 of 3 shards\n"
    )
    files = sorted((tmp_path / "out" / "teacher").iterdir())
    assert [path.name for path in files] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    schema = parquet.read_schema(files[0])
    assert (str(schema.field("hash").type), str(schema.field("embedding").type)) == (
        "uint64",
        "fixed_size_list<element: halffloat>[32]",
    )
    with pytest.raises(UserError, match="^out: exists already"):
        ran("cache", "model.yaml", "--parquet", "out")
    for name in ("model", "file"):
        assert ran("train", f"{name}.yaml").exit_code == 0
    weights = [Path("runs", name, "student.safetensors").read_bytes() for name in ("model", "file")]
    assert weights[0] == weights[1]
