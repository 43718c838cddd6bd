"""Targets: identities of every dimension reduction and alignment, then training and export with each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import spearmanr

from edgedistill import files, recipe, resolve
from edgedistill.data import corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError, own_cache
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle
from edgedistill.runtime.similarity import unit_rows
from edgedistill.session import QUIET, Session
from edgedistill.students.sentence_transformer import Affine
from edgedistill.teacher import encoder, precomputed_embeddings, targets
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.targets import check, fit, fix_signs, pca, procrustes, ridge
from edgedistill.training import load_models, train
from edgedistill.training.initial_student import initial_weights
from edgedistill.training.inputs.stage_targets import TargetReader
from edgedistill.training.load_models import Models
from tests.conftest import World, sentences

DRAW = np.random.default_rng(0)
POINTS = unit_rows(
    DRAW.standard_normal((400, 12)) * 0.7 ** np.arange(12) @ np.linalg.qr(DRAW.standard_normal((12, 12)))[0]
    + 0.1
)
ROTATION = np.linalg.qr(DRAW.standard_normal((12, 12)))[0]


def gram(rows: np.ndarray) -> np.ndarray:
    return rows @ rows.T


def distances(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows[:, None] - rows[None], axis=-1)[np.triu_indices(len(rows), 1)]


def test_pca_finds_the_plane_of_the_points():
    plane = DRAW.standard_normal((300, 2)) * [3.0, 1.0]
    lifted = plane @ ROTATION[:2] + 5 * ROTATION[3]
    found = pca(lifted, 2)
    assert np.allclose(distances(found(lifted)[:50]), distances(plane[:50]))
    assert found(lifted).std(0)[0] > found(lifted).std(0)[1]


def test_pca_scales_directions_by_a_power_of_their_variance():
    """−½ is scikit-learn's whitening but for scale and signs; leading back, a direction keeps its place and
    is as long as without."""
    from sklearn.decomposition import PCA

    white = PCA(5, svd_solver="full", whiten=True).fit_transform(POINTS)
    found = pca(POINTS, 5, variance_exponent=-0.5)
    ratio = np.abs(found(POINTS)) / np.abs(white)
    assert np.allclose(ratio, ratio[0, 0])
    plain = pca(POINTS, 12, centre=False)
    back = fit(
        recipe.Targets(reduce=recipe.Pca(kind="pca", rank=12, centre=False, variance_exponent=0.25), dims=12),
        POINTS,
        POINTS,
    )
    values = ((POINTS @ plain.weight) ** 2).mean(0)
    longer = (values / values.mean()) ** 0.25
    assert np.allclose(back(plain.weight.T), plain.weight.T * longer[:, None])
    away = fit(
        recipe.Targets(reduce=recipe.Pca(kind="pca", centre=False, variance_exponent=0.25), dims=12),
        POINTS,
        POINTS,
    )
    assert np.allclose(gram(away(POINTS)), gram(back(POINTS)))


def test_pca_is_scikit_learns_but_for_signs():
    from sklearn.decomposition import PCA

    other = PCA(5, svd_solver="full").fit(POINTS)
    found = pca(POINTS, 5)
    assert np.allclose(np.abs(found(POINTS)), np.abs(other.transform(POINTS)))


def test_signs_are_fixed():
    found = pca(POINTS, 5)
    assert np.allclose(fix_signs(-found.weight), found.weight)
    assert (found.weight[np.abs(found.weight).argmax(0), range(5)] > 0).all()


def test_ridge_recovers_a_linear_student_and_shrinks_with_strength():
    from sklearn.linear_model import Ridge

    weight, bias = DRAW.standard_normal((12, 5)), DRAW.standard_normal(5)
    student = POINTS @ weight + bias
    weak, strong = ridge(POINTS, student, 1e-9), ridge(POINTS, student, 100.0)
    assert np.allclose(weak(POINTS), student, atol=1e-5)
    assert np.linalg.norm(strong.weight) < 0.5 * np.linalg.norm(weak.weight)
    other = Ridge(alpha=100.0, solver="svd").fit(POINTS, student)
    assert np.allclose(strong.weight, other.coef_.T)
    assert np.allclose(strong.bias, other.intercept_)


def test_procrustes_recovers_a_rotation_and_keeps_cosines():
    turn = procrustes(POINTS, POINTS @ ROTATION)
    assert np.allclose(turn, ROTATION)
    student = DRAW.standard_normal((400, 12))
    turn = procrustes(POINTS, student)
    assert np.allclose(turn @ turn.T, np.eye(12))
    assert np.linalg.norm(POINTS @ turn - student) <= np.linalg.norm(POINTS - student)


def test_what_cannot_be_fitted():
    for fields, says in [
        ({}, "targets.dims: 5, and without `reduce` the teacher's embeddings keep 12 dimensions"),
        (
            {"reduce": {"kind": "pca"}, "dims": 13},
            "pca cannot make 13 dimensions of the teacher's 12; lower it",
        ),
    ]:
        with pytest.raises(UserError, match=says):
            check(recipe.Targets.model_validate({"dims": 5, **fields}), 12, 100)
    with pytest.raises(UserError, match=r"targets.dims: 5 dimensions cannot be fitted on 4 texts"):
        check(recipe.Targets.model_validate({"dims": 5, "reduce": {"kind": "pca"}}), 12, 4)


# The whole way


def go(world: World, out: Path, **changes: Any) -> dict[str, Any]:
    spec = world.spec(**changes)
    return train.train(spec, out, Session(data=world.data, log=lambda line: None))


BARE = {"kind": "bert", "layers": 1, "width": 16, "heads": 2}
WAYS: dict[str, dict[str, Any]] = {
    "pca": {"reduce": {"kind": "pca"}, "dims": 16},
    "aligned": {"reduce": {"kind": "pca"}, "dims": 16, "align": "procrustes"},
    "ridge": {"reduce": {"kind": "ridge"}, "dims": 16},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_reduced_teacher_is_a_bundle_and_gives_the_students_targets(world: World, tmp_path, way: str):
    """One recipe trains on targets, one exports the teacher that makes them: the same maps, the same vectors,
    in every precision."""
    looks = way != "pca"
    go(world, tmp_path / "student", student=BARE, targets=WAYS[way])
    itself = {"kind": "teacher", **({"reference_student": BARE} if looks else {})}
    info = go(world, tmp_path / "reduced", student=itself, targets=WAYS[way], stages=[])
    assert info["dims"] == 16
    name = "targets/targets.safetensors"
    assert (tmp_path / "student" / name).read_bytes() == (tmp_path / "reduced" / name).read_bytes()
    precisions = ["fp32", "w8"] if looks else ["fp32"]
    bundle_writer.export(tmp_path / "reduced", precisions, tmp_path / "bundle", lambda line: None)
    chain = [module["type"].split(".")[-1] for module in files.read_json(tmp_path / "bundle/modules.json")]
    assert chain == ["Transformer", "Pooling", "Normalize", "Dense", "Normalize"]
    spec = world.spec(student=BARE, targets=WAYS[way])
    texts = corpus.build(spec.rows, Session(data=world.data), spec.seed)  # type: ignore[arg-type]
    loaded = encoder.TeacherEncoder(spec.teacher)
    rows = np.arange(30)
    data = targets.FittingData(
        TeacherPass(loaded, texts, QUIET).open(), texts.training_count, lambda rows: np.empty(0), 0
    )
    wanted = targets.load_or_fit(spec.targets, data, tmp_path / "student" / "targets")[rows]  # type: ignore[arg-type]
    assert np.linalg.norm(wanted, axis=1) == pytest.approx(np.ones(30), abs=1e-5)
    assert wanted.std(0).min() > 0
    for precision, least in [("fp32", 0.999), ("w8", 0.98)][: len(precisions)]:
        opened = bundle.load(tmp_path / "bundle", precision=precision)
        assert opened.manifest["kind"] == "reduced"
        assert (opened.encode(texts.texts(rows)) * wanted).sum(1).min() > least


def test_alignment_begins_nearer(world: World, tmp_path):
    """Before a single step, aligned targets are closer to the initial student's embeddings; their rank order
    is unchanged."""
    found = {}
    for align in ("none", "procrustes", "signed_permutation"):
        spec = world.spec(student=BARE, targets={"reduce": {"kind": "pca"}, "dims": 16, "align": align})
        texts = corpus.build(spec.rows, Session(data=world.data), spec.seed)  # type: ignore[arg-type]
        loaded = encoder.TeacherEncoder(spec.teacher)
        student = initial_weights.build(spec, Models(loaded), loaded.tokenizer, world.data)
        made = TargetReader(
            spec,
            Models(loaded),
            Rows.of_texts(texts),
            student,
            Session(data=world.data, log=lambda line: None),
            tmp_path / align,
        ).of_texts
        rows = np.arange(texts.training_count)
        own = student.embed(texts.texts(rows))
        found[align] = ((made[rows] * own).sum(1).mean(), gram(made[rows][:40])[np.triu_indices(40, 1)])
    assert found["procrustes"][0] > found["signed_permutation"][0] > found["none"][0]
    assert spearmanr(found["procrustes"][1], found["none"][1]).statistic > 0.9999


def test_targets_of_two_teachers_have_the_cosines_of_both(world: World, tmp_path):
    """The second is a run, whose embeddings are centred."""
    go(world, tmp_path / "second", student={**BARE, "width": 32})
    both = {"reduce": {"kind": "pca", "centre": False}, "dims": 16}
    both["teachers"] = [{"model": str(tmp_path / "second")}]
    spec = world.spec(student=BARE, targets=both)
    session = Session(data=world.data)
    texts = corpus.build(spec.rows, session, spec.seed)  # type: ignore[arg-type]
    models = load_models.open_models(spec, session)
    tokenizer = encoder.TeacherEncoder(spec.teacher).tokenizer
    student = initial_weights.build(spec, models, tokenizer, session)
    reader = TargetReader(spec, models, Rows.of_texts(texts), student, session, tmp_path / "maps")
    rows, upper = np.arange(80), np.triu_indices(80, 1)
    teacher, second = (
        TeacherPass(model, texts, QUIET).open()[rows]
        for model in (models.teacher, models.scorers["targets.teachers[0]"])
    )
    both_cosines = (gram(teacher) + gram(unit_rows(second - second.mean(0))))[upper]
    found = gram(reader.of_texts[rows])[upper]
    assert spearmanr(found, both_cosines).statistic > max(
        0.8, spearmanr(found, gram(teacher)[upper]).statistic
    )
    with pytest.raises(UserError, match="targets.*teachers.*pca"):
        recipe.parse(world.recipe(student=BARE, targets={**both, "reduce": {"kind": "none"}}), "test")


def test_targets_outlive_a_kill(world: World, tmp_path):
    """A resumed run reads the maps that were kept, whatever it would fit now."""
    changes = {"student": BARE, "targets": WAYS["pca"]}
    spec = world.spec(**changes)
    partial = resolve.unfinished_run(tmp_path / "a")
    partial.mkdir()
    (partial / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
    Affine(np.eye(32, 16), np.full(16, 0.5)).write(partial / "targets")
    train.train(spec, tmp_path / "a", Session(data=world.data, log=lambda line: None), resume=True)
    assert torch.equal(load_file(tmp_path / "a/targets/targets.safetensors")["weight"], torch.eye(32, 16))


def test_a_reduced_teacher_is_measured_beside_the_teacher(world: World, tmp_path):
    """bench takes the teacher itself, never its reduction, as the measure of what is kept."""
    from edgedistill.evaluation import bench, speed
    from tests.training.test_train import suite_of

    for name, more in (("teacher", {}), ("reduced", {"targets": {"reduce": {"kind": "pca"}, "dims": 4}})):
        go(world, tmp_path / "runs" / name, name=name, student={"kind": "teacher"}, stages=[], **more)
        bundle_writer.export(tmp_path / "runs" / name, ["fp32"], tmp_path / name, lambda line: None)
    measured = [f"{tmp_path / name}:fp32" for name in ("reduced", "teacher")]
    made = bench.bench(
        measured,
        [suite_of(world)],
        Session(data=world.data, log=lambda line: None, threads=1),
        plan=speed.MeasurementPlan(2, 1, 1, 0.0, 2),
    )
    kept = {each["bundle"]["name"]: each["kept"] for each in made["reports"]}
    assert kept["teacher"]["tiny"] == 1
    assert kept["reduced"]["tiny"] != 1


# Precomputed embeddings


def closed(
    world: World, folder: Path, vectors: np.ndarray | None = None, texts: list[str] | None = None
) -> dict[str, Any]:
    """A closed teacher's file: the corpus' texts in another order, twice the length, more texts than
    needed."""
    texts = texts if texts is not None else [*reversed(sentences(440)), "One text more."]
    vectors = (
        vectors
        if vectors is not None
        else 2 * encoder.TeacherEncoder(recipe.Teacher(model=str(world.teacher), max_tokens=32)).embed(texts)
    )
    folder.mkdir(exist_ok=True)
    np.save(folder / "closed.npy", vectors)
    (folder / "closed.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return {"embeddings": str(folder / "closed.npy")}


def parquet(folder: Path, texts: list[str], vectors: list[Any], kind: Any = None) -> str:
    import pyarrow as pa
    from pyarrow import parquet as pq

    column = pa.array(vectors, kind) if kind is not None else pa.array(vectors)
    pq.write_table(pa.table({"text": texts, "embedding": column}), folder / "closed.parquet")
    return str(folder / "closed.parquet")


def built(world: World) -> corpus.Corpus:
    spec = world.spec()
    assert spec.rows is not None
    return corpus.build(spec.rows, Session(data=world.data), 0)


def test_precomputed_embeddings_are_matched_text_by_text(world: World, tmp_path):
    import pyarrow as pa

    texts = built(world)
    spec = closed(world, tmp_path)
    expected = TeacherPass(encoder.TeacherEncoder(world.spec().teacher), texts, QUIET).open()
    rows = np.arange(len(texts))
    found = TeacherPass(
        precomputed_embeddings.PrecomputedEmbeddings(recipe.Teacher.model_validate(spec), None), texts, QUIET
    ).open()
    assert (sum(map(len, found.parts)), found.dims) == (len(texts), 32)
    assert np.abs(found[rows] - expected[rows]).max() < 1e-3
    numbers = np.load(spec["embeddings"])
    lines = Path(spec["embeddings"]).with_suffix(".txt").read_text().splitlines()
    for kind in (pa.list_(pa.float32()), pa.list_(pa.float64(), 32)):
        name = parquet(tmp_path, lines, numbers.tolist(), kind)
        assert np.array_equal(
            TeacherPass(
                precomputed_embeddings.PrecomputedEmbeddings(recipe.Teacher(embeddings=name), None),
                texts,
                QUIET,
            ).open()[rows],
            found[rows],
        )


def test_a_student_of_a_closed_teacher(world: World, tmp_path):
    """No weights at all: a file of vectors, a tokenizer learned or borrowed, a word table from random."""
    spec = closed(world, tmp_path / "data")
    words = tmp_path / "words"
    shutil.copytree(world.teacher, words, ignore=shutil.ignore_patterns("*.safetensors"))
    student = {**BARE, "embeddings": {"from": "random"}, "tokenizer": str(words), "trim": {}}
    info = go(world, tmp_path / "a", teacher=spec, student=student, targets=WAYS["pca"])
    assert info["dims"] == 16
    bundle_writer.export(tmp_path / "a", ["fp32"], tmp_path / "b", lambda line: None)
    assert bundle.load(tmp_path / "b").manifest["teacher"] == Path(spec["embeddings"]).name


def test_unusable_files_of_embeddings_are_refused(world: World, tmp_path):
    texts, all_of_them = built(world), sentences(440)

    def refused(match: str, **spec: Any):
        before = sorted((own_cache() / "teachers").glob("*"))
        with pytest.raises(UserError, match=match):
            TeacherPass(
                precomputed_embeddings.PrecomputedEmbeddings(recipe.Teacher.model_validate(spec), tmp_path),
                texts,
                QUIET,
            ).open()
        assert sorted((own_cache() / "teachers").glob("*")) == before

    rows = DRAW.standard_normal((440, 6))
    refused("teacher.embeddings: no file .*nothing.npy", embeddings="nothing.npy")
    refused("439 embeddings, but 440 texts in closed.txt", **closed(world, tmp_path, rows[:439], all_of_them))
    refused(
        '2 of 440 texts that were looked up are not in it, the first is "',
        **closed(world, tmp_path, rows[2:], all_of_them[2:]),
    )
    broken = rows.copy()
    broken[7, 2] = np.nan
    refused("row 8 holds only zeros, or a value", **closed(world, tmp_path, broken, all_of_them))
    broken[7] = 0
    refused("row 8 holds only zeros, or a value", **closed(world, tmp_path, broken, all_of_them))
    refused(
        "int64 of shape \\(440,\\); save the embeddings as a matrix",
        **closed(world, tmp_path, np.arange(440), all_of_them),
    )
    (tmp_path / "closed.txt").unlink()
    refused("teacher.texts: no file .*closed.txt", embeddings="closed.npy")
    (tmp_path / "bad.npy").write_bytes(b"no")
    (tmp_path / "bad.txt").write_text("a\n")
    refused("not a numeric .npy file", embeddings="bad.npy")
    refused("no file type of embeddings '.txt'", embeddings="bad.txt")
    refused(
        "no column 'embeding'; did you mean 'embedding'",
        embeddings=parquet(tmp_path, all_of_them, rows.tolist()),
        embedding_column="embeding",
    )
    refused(
        "column 'embedding' is string, not lists of floats",
        embeddings=parquet(tmp_path, all_of_them, all_of_them),
    )


# Matryoshka, on the whole way


def test_a_matryoshka_student_may_be_cut(world: World, tmp_path):
    objective = {"kind": "matryoshka", "dims": [4, 8, 16], "objective": {"kind": "cosine"}}
    stage = {"name": "a", "objective": objective, "steps": 3, "batch": 8}
    texts = sentences(60, seed=9)
    go(world, tmp_path / "cut", student=BARE, targets=WAYS["pca"], stages=[stage])
    bundle_writer.export(tmp_path / "cut", ["fp32"], tmp_path / "bundle", lambda line: None)
    opened = bundle.load(tmp_path / "bundle")
    assert opened.dims == [16, 8, 4]
    assert np.allclose(opened.encode(texts, dim=4), unit_rows(opened.encode(texts)[:, :4]), atol=1e-6)
    with pytest.raises(
        UserError, match=r"stages\[0\].objective.dims: end at 8, the student has 16 dimensions"
    ):
        go(
            world,
            tmp_path / "x",
            student=BARE,
            targets=WAYS["pca"],
            stages=[{**stage, "objective": {**objective, "dims": [4, 8]}}],
        )


def test_targets_fit_the_student(world: World, tmp_path):
    for width, way, says in [
        (20, "pca", "compares coordinates, the student has 20 and the teacher 16"),
        (20, "aligned", "compares coordinates"),
    ]:
        with pytest.raises(UserError, match=says):
            go(world, tmp_path / "x", student={**BARE, "width": width}, targets=WAYS[way])
        assert not resolve.unfinished_run(tmp_path / "x").exists()
    itself = {"kind": "teacher", "reference_student": {**BARE, "width": 20}}
    with pytest.raises(
        UserError, match="16 dimensions are fitted to the student's embeddings, which have 20"
    ):
        go(world, tmp_path / "x", student=itself, targets=WAYS["aligned"], stages=[])


REDUCED: list[dict[str, Any]] = [
    {"dims": 4, "reduce": {"kind": "pca"}},
    {"dims": 4, "reduce": {"kind": "pca", "variance_exponent": -0.5}},
    {"dims": 12, "align": "procrustes"},
    {"dims": 12},
]


@pytest.mark.parametrize("spec", REDUCED, ids=str)
@pytest.mark.parametrize(
    ("kind", "fact"), [("all the same", "all the same"), ("zeros", "all the same"), ("nan", "not finite")]
)
def test_nothing_is_fitted_on_embeddings_without_directions(spec: dict[str, Any], kind: str, fact: str):
    """Maps of what rounding leaves would be finite, and their targets noise of unit length."""
    rows = {
        "all the same": np.repeat(POINTS[:1], 400, 0),
        "zeros": POINTS * 0,
        "nan": np.where(POINTS[7] == POINTS, np.nan, POINTS),
    }[kind]
    rows = rows.astype(np.float16).astype(np.float64)
    student = DRAW.standard_normal((400, spec["dims"]))
    with pytest.raises(
        UserError, match=f"^targets: the teacher's embeddings of 400 texts are {fact}; choose another teacher"
    ):
        fit(recipe.Targets.model_validate(spec), rows, student)
    fitted = fit(recipe.Targets.model_validate(spec), POINTS, student)
    assert np.isfinite(fitted.weight).all()
