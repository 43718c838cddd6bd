"""`student: {weights: BUNDLE or RUN}`: a finished student goes on learning, from its own teacher or from
another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgedistill import bundle_run, files, recipe, resolve, run
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.planning import cost
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.students import head
from edgedistill.training import train
from edgedistill.training.initial_student import finished_student
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from tests.conftest import World, sentences

TEXTS = sentences(40, seed=7)
KINDS: dict[str, dict[str, Any]] = {
    "bert": {"kind": "bert", "weights": "teacher", "layers": [1], "head": "linear"},
    "recurrent": {"kind": "recurrent", "layers": 1, "bottleneck": 16, "head": "linear"},
    "bilstm": {"kind": "bilstm", "width": 16, "hidden": 12},
    "static": {"kind": "static", "width": 32},
}
STILL = [
    {
        "name": "still",
        "objective": {"kind": "cosine"},
        "steps": 2,
        "batch": 16,
        "bucket": 4,
        "learning_rate": 1e-9,
    }
]


@pytest.fixture(scope="module")
def sources(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a bundle of each kind."""
    root = tmp_path_factory.mktemp("sources")
    for kind, student in KINDS.items():
        go(world, root / kind, student=student)
        bundle_writer.export(root / kind, ["fp32", "int8"], root / f"{kind}-bundle", lambda line: None)
    return root


def go(world: World, out: Path, said: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    log = (lambda line: None) if said is None else said.append
    return train.train(world.spec(**changes), out, Session(data=world.data, log=log))


def embedded(folder: Path) -> np.ndarray:
    opened = run.open_run(folder)
    return PreparedStudent.of(opened).embed(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_goes_on_where_it_was(world: World, sources: Path, tmp_path, kind: str):
    source, said = sources / f"{kind}-bundle", list[str]()
    info = go(world, tmp_path / "a", said, student={"weights": str(source)}, stages=STILL)
    sha256 = files.sha256_file(source / "onnx" / "model.onnx")
    assert info["weights"] == {"bundle": f"{kind}-bundle", "precision": "fp32", "sha256": sha256}
    assert not [line for line in said if line.startswith("head:")], (
        "the same teacher and dimensions: the head stays"
    )
    before = bundle.load(source, "fp32").encode(TEXTS)
    assert (embedded(tmp_path / "a") * before).sum(1).min() > 0.9999
    found = bundle_writer.export(tmp_path / "a", ["fp32"], tmp_path / "b", lambda line: None)
    assert found["dims"] == [32]
    assert (bundle.load(tmp_path / "b", "fp32").encode(TEXTS) * before).sum(1).min() > 0.9999
    assert files.read_json(tmp_path / "b" / "manifest.json")["run"]["weights"]["sha256"] == sha256


def test_it_learns(world: World, sources: Path, tmp_path):
    def closeness(folder: Path) -> float:
        from edgedistill.teacher import encoder

        return float(
            (embedded(folder) * encoder.TeacherEncoder(recipe.Teacher(model=str(world.teacher))).embed(TEXTS))
            .sum(1)
            .mean()
        )

    stage = {"name": "more", "objective": {"kind": "cosine"}, "steps": 60, "batch": 32, "learning_rate": 3e-3}
    go(world, tmp_path / "a", student={"weights": str(sources / "bert")}, stages=[stage])
    assert closeness(tmp_path / "a") > closeness(sources / "bert") + 0.02
    weights = run.open_run(tmp_path / "a").info["weights"]
    assert weights == {"run": "bert", "sha256": files.sha256_file(sources / "bert" / "student.safetensors")}


def test_the_card_names_what_it_learned_from_before(world: World, sources: Path, tmp_path):
    """Twice continued, once from a bundle: teachers and corpora of both earlier trainings, with their
    licences."""
    named = {"files": ["texts.txt"], "held_out": 40, "licences": {"texts.txt": "CC0 | one"}}
    teacher = {**world.recipe()["teacher"], "licence": "CC BY 4.0"}
    second = {
        "name": "second",
        "teacher": teacher,
        "rows": named,
        "student": {"weights": str(sources / "static-bundle")},
    }
    rows = "".join(f"a man walks {n}\tsomeone walks {n}\tnobody walks {n}\n" for n in range(20))
    (tmp_path / "triples.tsv").write_text("anchor\tentailment\tcontradiction\n" + rows, encoding="utf-8")
    columns = ["anchor", "entailment", "contradiction"]
    tuples = {
        "files": [str(tmp_path / "triples.tsv")],
        "columns": columns,
        "licences": {"triples.tsv": "MIT"},
    }
    tune = {"name": "tune", "objective": {"kind": "info_nce"}, "rows": tuples, "steps": 1, "batch": 8}
    go(world, tmp_path / "a", **second, stages=[*STILL, tune])
    (recorded,) = run.open_run(tmp_path / "a").info["earlier"]
    assert recorded["recipe"] == "tiny" and recorded["sources"] == [
        {"name": "texts.txt", "texts": 440, "licence": None}
    ]
    assert finished_student.earlier(run.open_run(tmp_path / "a"))[:-1] == [recorded]
    strange = run.open_run(tmp_path / "a")
    strange.info["corpus"] = {"sources": [{"name": 3}]}
    with pytest.raises(UserError, match=r"cannot be read \('corpus.sources.0.name'\)"):
        finished_student.earlier(strange)
    go(world, tmp_path / "b", name="third", student={"weights": str(tmp_path / "a")}, stages=STILL)
    bundle_writer.export(tmp_path / "b", ["fp32"], tmp_path / "x", lambda line: None)
    card = (tmp_path / "x" / "README.md").read_text(encoding="utf-8")
    first, then = card.index("By the recipe `tiny`:"), card.index("By the recipe `second`:")
    assert card.index("by the recipe `third`: still") < card.index("### Earlier training") < first < then
    assert (
        "| `teacher` | — | not stated |" in card[first:then]
        and "| texts.txt | 440 | not named |" in card[first:then]
    )
    assert (
        "| `teacher` | — | CC BY 4.0 |" in card[then:] and "| texts.txt | 440 | CC0 \\| one |" in card[then:]
    )
    assert "| triples.tsv (stage tune) | not recorded | MIT |" in card[then:]


def test_max_tokens_and_dropout_are_the_recipes(world: World, sources: Path, tmp_path):
    student = {"weights": str(sources / "bert-bundle"), "max_tokens": 20, "dropout": 0.25}
    go(world, tmp_path / "a", student=student, stages=STILL)
    opened = run.open_run(tmp_path / "a")
    module: Any = opened.student()
    assert opened.max_tokens == 20 and module.model.config.hidden_dropout_prob == 0.25


@pytest.mark.parametrize("name", ["bert-bundle", "recurrent", "static", "bilstm"])
def test_more_tokens_than_before(name: str, world: World, sources: Path, tmp_path):
    """Short texts are embedded as before; of a long one the end is read too."""
    source = bundle_run.open_finished(str(sources / name), "test")
    tokens = source.max_tokens + 100
    go(world, tmp_path / "a", student={"weights": str(sources / name), "max_tokens": tokens}, stages=STILL)
    opened = run.open_run(tmp_path / "a")
    assert opened.max_tokens == tokens
    student = PreparedStudent.of(opened)
    before = PreparedStudent.of(source).embed(TEXTS)
    np.testing.assert_allclose(student.embed(TEXTS), before, atol=2e-5)
    long = TEXTS[0]
    while len(student.tokenizer(long)["input_ids"]) <= source.max_tokens:
        long += f" {TEXTS[1]}"
    longer, other = student.embed([f"{long} {TEXTS[2]}", f"{long} {TEXTS[3]}"])
    assert np.isfinite(longer).all() and not np.allclose(longer, other, atol=1e-4)


OTHER = [
    ("bert", {"targets": {"reduce": {"kind": "pca"}, "dims": 12}}, 12),
    ("static", {"targets": {"reduce": {"kind": "pca"}, "dims": 12}}, 12),
    ("bilstm", {"teacher": {"model": "TEACHER", "max_tokens": 32, "prompt": "query:"}}, 32),
    ("static", {"teacher": {"model": "TEACHER", "max_tokens": 32, "prompt": "query:"}}, 32),
]


@pytest.mark.parametrize(("kind", "changes", "dims"), OTHER)
def test_another_teacher_has_the_head_fitted_first(
    world: World, sources: Path, tmp_path, kind: str, changes: dict[str, Any], dims: int
):
    if "teacher" in changes:
        changes = {"teacher": {**changes["teacher"], "model": str(world.teacher)}}
    said: list[str] = []
    info = go(world, tmp_path / "a", said, student={"weights": str(sources / kind)}, stages=STILL, **changes)
    assert info["dims"] == dims
    (line,) = [line for line in said if line.startswith("head: fitted to the targets'")]
    before, after = float(line.split("to them ")[1].split()[0]), float(line.split("before, ")[1].split()[0])
    assert f"{dims} dimensions on 400 texts" in line and after > max(before + 0.03, 0.5)
    opened = run.open_run(tmp_path / "a")
    assert opened.shape["head"] == {"dims": dims, "bias": True} and opened.shape["tanh"] is False
    found = bundle_writer.export(tmp_path / "a", ["fp32"], tmp_path / "b", lambda line: None)
    assert found["dims"] == [dims]


def test_targets_in_the_teachers_own_space_keep_the_head(world: World, sources: Path, tmp_path):
    said: list[str] = []
    rebuilt = {"reduce": {"kind": "pca", "rank": 24}, "dims": 32}
    go(world, tmp_path / "a", said, student={"weights": str(sources / "bert")}, stages=STILL, targets=rebuilt)
    assert not [line for line in said if line.startswith("head:")]


def problem(world: World, student: dict[str, Any], **changes: Any) -> str:
    """The error that `check` and `train` have in common; train must leave nothing behind."""
    spec = world.spec(student=student, **{"stages": STILL, **changes})
    out = world.folder / "refused"
    with pytest.raises(UserError) as at_check:
        cost.costs([spec], Session(data=world.data))[0]
    with pytest.raises(UserError) as at_train:
        train.train(spec, out, Session(data=world.data))
    assert str(at_check.value) == str(at_train.value)
    assert not out.exists() and not resolve.unfinished_run(out).exists()
    return str(at_train.value)


def test_what_is_refused(world: World, sources: Path):
    assert problem(world, {"weights": "mano"}).startswith("student.weights: no finished student 'mano'")
    static = str(sources / "static")
    assert "is a static student, which has none; leave it out" in problem(
        world, {"weights": static, "dropout": 0.1}
    )
    muon = [{**STILL[0], "optimizer": "muon"}]
    assert problem(world, {"weights": static}, stages=muon).startswith(
        "stages[0].optimizer: muon optimizes the matrices of layers"
    )


def test_it_is_fine_tuned(world: World, sources: Path, tmp_path):
    rows = "".join(f"{text}\t{int('cat' in text)}\n" for text in sentences(120, seed=11))
    (world.data / "cats.tsv").write_text("sentence\tlabel\n" + rows, encoding="utf-8")
    stage = {
        "kind": "finetune",
        "rows": {"files": ["cats.tsv"], "columns": ["sentence"], "label": "label", "dev_rows": 20},
        "steps": 4,
        "batch": 16,
        "hidden": 8,
    }
    info = go(world, tmp_path / "a", student={"weights": str(sources / "bilstm-bundle")}, stages=[stage])
    assert info["weights"]["bundle"] == "bilstm-bundle" and info["task"]["dev"] is not None
    with torch.inference_mode():
        assert run.open_run(tmp_path / "a").classifier().out.out_features == 2


def test_a_share_of_the_initial_weights_stays(world: World, sources: Path, tmp_path):
    stage = {
        "name": "more",
        "objective": {"kind": "cosine"},
        "steps": 6,
        "batch": 16,
        "bucket": 4,
        "learning_rate": 0.01,
    }
    go(world, tmp_path / "all", student={"weights": str(sources / "bert")}, stages=[stage])
    go(
        world,
        tmp_path / "part",
        student={"weights": str(sources / "bert")},
        stages=[stage | {"initial_share": 0.25}],
    )
    start, end, part = (
        run.open_run(each).student().state_dict()
        for each in (sources / "bert", tmp_path / "all", tmp_path / "part")
    )
    moved = [name for name in end if not torch.equal(start[name], end[name])]
    assert len(moved) > 5
    for name in moved:
        assert torch.allclose(part[name], 0.25 * start[name] + 0.75 * end[name], atol=1e-6)


def exported(source: Path, out: Path):
    """Its bundle, which embeds as the run does."""
    bundle_writer.export(source, ["fp32", "int8"], out, lambda line: None)
    for precision, least in (("fp32", 0.99999), ("int8", 0.99)):
        assert (bundle.load(out, precision).encode(TEXTS) * embedded(source)).sum(1).min() > least


def test_a_whole_table_is_product_quantized(world: World, sources: Path, tmp_path):
    whole = run.open_run(sources / "static").student()
    student = {"weights": str(sources / "static"), "pq_bytes": 16}
    go(world, tmp_path / "a", student=student, stages=STILL)
    made: Any = run.open_run(tmp_path / "a").student()
    rows = whole.embedding.weight.detach()
    assert torch.allclose(made.embedding.weight, rows, atol=1e-4), "200 tokens of 256 centroids are exact"

    exported(tmp_path / "a", tmp_path / "b")
    again = go(world, tmp_path / "c", student={"weights": str(tmp_path / "b")}, stages=STILL)
    assert again["parameters"]["embedding"] == made.weights.numel() * (16 + 1) + 256 * 32
    assert (embedded(tmp_path / "c") * embedded(tmp_path / "a")).sum(1).min() > 0.9999


@pytest.mark.parametrize(
    ("kind", "others"),
    [("bert", {}), ("recurrent", {}), ("bilstm", {}), ("static", {}), ("static", {"pq_bytes": 16})],
)
def test_words_are_found(world: World, sources: Path, tmp_path, kind: str, others: dict[str, int]):
    """A projection of a text's words: it is added to the embedding at the recipe's length, in the graph too,
    for libraries that pool tokens too, and it stays as it is when the student goes on learning."""
    share = 0.5
    student = {"weights": str(sources / kind), "lexical": share, **others}
    go(world, tmp_path / "a", student=student, stages=[])
    made: Any = run.open_run(tmp_path / "a").student()
    channel = made.lexical_channel
    a, b, c, *others = torch.nonzero(~channel.continues)[5:].flatten().tolist()  # behind the special tokens
    inside = int(torch.nonzero(channel.continues)[0])
    texts = [
        [2, a, b, c, 3],
        [2, c, a, b, 3],
        [2, *others[:3], 3],
        [2, a, inside, b, 3],
        [2, b, inside, a, 3],
    ]
    ids = torch.tensor(texts)
    mask = torch.ones_like(ids)
    words, own = channel(ids, mask), torch.nn.functional.normalize
    longer = (5 / 16) ** 0.25  # the fourth root of a text's tokens, in 16
    assert torch.allclose(words.norm(dim=1), torch.tensor(longer * share), atol=1e-5), (
        "orthonormal directions"
    )
    assert torch.allclose(words[0], words[1], atol=1e-6), "the same words in another order"
    assert float(own(words, dim=1)[0] @ own(words, dim=1)[2]) < 0.8
    assert float(own(words, dim=1)[3] @ own(words, dim=1)[4]) < 0.8, "another word is continued"
    with head.without_lexical_channel(made):
        plain = own(made(ids, mask), dim=1)
    assert torch.allclose(made(ids, mask), plain + words, atol=1e-6)
    assert torch.allclose(plain, own(run.open_run(sources / kind).student()(ids, mask), dim=1), atol=1e-6)

    exported(tmp_path / "a", tmp_path / "b")
    stage = {"name": "more", "objective": {"kind": "cosine"}, "steps": 5, "batch": 32, "learning_rate": 3e-3}
    if kind not in ("bilstm", "static"):
        stage["optimizer"] = "muon"
    go(world, tmp_path / "c", student={"weights": str(tmp_path / "b")}, stages=[stage])
    later: Any = run.open_run(tmp_path / "c").student()
    assert torch.allclose(later.lexical_channel(ids, mask), words, atol=1e-4)
    assert (embedded(tmp_path / "c") * embedded(tmp_path / "a")).sum(1).min() < 0.9999, "it learned"
    # another space: the directions of the old head are gone, and words with them, unless they are asked for
    targets = {"reduce": {"kind": "pca"}, "dims": 24}
    start = {"weights": str(tmp_path / "a")}
    go(world, tmp_path / "d", student=start, targets=targets, stages=STILL)
    go(world, tmp_path / "e", student=start | {"lexical": 0.2}, targets=targets, stages=STILL)
    bare, worded = (run.open_run(tmp_path / name).student() for name in "de")
    assert bare.lexical_channel is None and bare.dims == 24
    assert torch.allclose(
        worded.lexical_channel(ids, mask).norm(dim=1), torch.tensor(longer * 0.2), atol=1e-5
    )


def test_the_words_of_a_student_without_room_for_them_are_refused(world: World, sources: Path, tmp_path):
    source = {"kind": "bert", "weights": "teacher", "layers": [1], "head": "linear", "dims": 4}
    narrow = {"reduce": {"kind": "pca"}, "dims": 4}
    go(world, tmp_path / "narrow", student=source, targets=narrow, stages=STILL)
    with pytest.raises(UserError, match="student.lexical: .*narrow has 4 dimensions, .* needs 8; leave it"):
        go(world, tmp_path / "x", student={"weights": str(tmp_path / "narrow"), "lexical": 0.3}, stages=[])


def test_only_whole_tables_are_product_quantized(world: World, sources: Path, tmp_path):
    for kind, student, fact in (
        ("bert", {"pq_bytes": 16}, "no static student with a full table"),
        ("static", {"pq_bytes": 5}, "5 blocks do not divide a width of 32"),
    ):
        with pytest.raises(UserError, match=fact):
            go(world, tmp_path / "x", student={"weights": str(sources / kind), **student}, stages=STILL)
