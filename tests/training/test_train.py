"""recipe -> run, on the tiny world: the same bytes however it got there, and nothing half written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgedistill import recipe, resolve, run
from edgedistill.errors import UserError
from edgedistill.files import sha256_file
from edgedistill.session import QUIET, Session
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import checkpoint, train
from edgedistill.training.initial_student import student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import Models
from edgedistill.training.stage_in_progress import StageInProgress
from tests.conftest import World, sentences
from tests.faults.commands import PROCESSES


def go(world: World, out: Path, resume: bool = False, **changes: Any) -> dict[str, Any]:
    spec = world.spec(**changes)
    return train.train(spec, out, Session(data=world.data, log=lambda line: None), resume=resume)


def test_a_run_opens_and_embeds_like_it_was_trained(world: World, tmp_path):
    info = go(world, tmp_path / "a")
    opened = run.open_run(tmp_path / "a")
    assert opened.dims == info["dims"] == 32
    assert opened.parameters["total"] == sum(p.numel() for p in opened.student().parameters())
    vectors = PreparedStudent.of(opened).embed(sentences(8, seed=5))
    assert vectors.shape == (8, 32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert not resolve.unfinished_run(tmp_path / "a").exists()


def test_training_brings_the_student_closer(world: World, tmp_path):
    from edgedistill.teacher import encoder

    texts = sentences(60, seed=9)
    targets = encoder.TeacherEncoder(recipe.Teacher(model=str(world.teacher))).embed(texts)

    def closeness(steps: int) -> float:
        stage = {
            "name": "distil",
            "objective": {"kind": "cosine"},
            "steps": steps,
            "batch": 32,
            "learning_rate": 5e-3,
        }
        go(world, tmp_path / str(steps), stages=[stage])
        opened = run.open_run(tmp_path / str(steps))
        return float((PreparedStudent.of(opened).embed(texts) * targets).sum(1).mean())

    assert closeness(80) > closeness(1) + 0.2


def test_same_recipe_same_bytes(world: World, tmp_path):
    for name in "ab":
        go(world, tmp_path / name)
    assert sha256_file(tmp_path / "a/student.safetensors") == sha256_file(tmp_path / "b/student.safetensors")
    go(world, tmp_path / "c", seed=1)
    assert sha256_file(tmp_path / "a/student.safetensors") != sha256_file(tmp_path / "c/student.safetensors")


STEPS = 24
TRIPLE = ["anchor", "entailment", "contradiction"]
TWO_STAGES = [
    {
        "name": "distil",
        "objective": {
            "kind": "sum",
            "terms": [
                {"weight": 1.0, "objective": {"kind": "congen", "queue": 40}},
                {"weight": 2.0, "objective": {"kind": "cosine"}},
            ],
        },
        "view": {"kind": "word_deletion"},
        "steps": STEPS,
        "batch": 16,
        "bucket": 4,
    },
    {
        "name": "tune",
        "objective": {"kind": "info_nce"},
        "rows": {"files": ["triples.tsv"], "columns": TRIPLE},
        "steps": STEPS,
        "batch": 16,
        "bucket": 4,
    },
]
SELECT = {"suite": "SUITE", "every": 10}


def suite_of(world: World) -> str:
    folder = world.folder / "suite"
    if not folder.exists():
        folder.mkdir()
        texts = sentences(60, seed=3)
        rows = [
            f"{a}\t{b}\t{len(set(a.split()) & set(b.split()))}\tall"
            for a, b in zip(texts[:30], texts[30:], strict=True)
        ]
        (folder / "pairs.tsv").write_text(
            "sentence1\tsentence2\tscore\tsubset\n" + "\n".join(rows) + "\n", encoding="utf-8"
        )
        (folder / "suite.yaml").write_text(
            "name: tiny\nkind: sts\nabout: tiny\ntasks:\n  - {name: all, file: pairs.tsv}\n", encoding="utf-8"
        )
    return str(folder / "suite.yaml")


def write_triples(world: World, count: int):
    rows = zip(sentences(count, seed=20), sentences(count, seed=21), sentences(count, seed=22), strict=True)
    text = "\t".join(TRIPLE) + "\n" + "".join("\t".join(row) + "\n" for row in rows)
    (world.data / "triples.tsv").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("student", "optimizer", "kills"),
    [
        (
            {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear", "dropout": 0.1},
            "adamw",
            [6, 30],
        ),
        (
            {
                "kind": "bert",
                "weights": "teacher",
                "layers": 1,
                "pq_bytes": 8,
                "trim": {},
                "head": "linear",
                "dropout": 0.1,
            },
            "muon",
            [6],
        ),
    ],
    ids=["bert", "trimmed codes and muon"],
)
def test_killed_and_resumed_gives_the_same_bytes(
    world: World, tmp_path, student: dict[str, Any], optimizer: str, kills: list[int]
):
    """kill -9 wherever it happens to be after so many steps, in either stage, --resume: the weights of the
    uninterrupted run."""
    changes = {
        "stages": [{**stage, "optimizer": optimizer} for stage in TWO_STAGES],
        "select": {**SELECT, "suite": suite_of(world)},
        "student": student,
        "targets": {"reduce": {"kind": "pca"}, "dims": 24, "align": "procrustes"},
    }
    write_triples(world, 60)
    whole = PROCESSES.Process(
        target=go, args=(world, tmp_path / "whole"), kwargs=changes
    )  # like the others: a process' history may
    whole.start()  # decide how it rounds, such as what its first session of onnxruntime set for denormals
    whole.join()
    checkpoints = tmp_path / "cut.partial" / "checkpoints"
    for number, steps in enumerate(kills):
        child = PROCESSES.Process(target=go_slowly, args=(world, tmp_path / "cut", bool(number), changes))
        child.start()
        while child.is_alive() and newest(checkpoints) < steps:
            time.sleep(0.02)
        child.kill()
        child.join()
        assert newest(checkpoints) >= steps, "the child ended by itself"
        assert not (tmp_path / "cut").exists()
    last = PROCESSES.Process(target=go, args=(world, tmp_path / "cut", True), kwargs=changes)
    last.start()
    last.join()
    assert sha256_file(tmp_path / "cut/student.safetensors") == sha256_file(
        tmp_path / "whole/student.safetensors"
    )
    selected = [
        [json.loads(line)["step"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    assert selected == [[10, 20, 24, 10, 20, 24]] * 2


def test_muon_moves_the_layers_matrices_and_nothing_else(world: World, tmp_path, monkeypatch):
    """The same student, one step: what Muon moves has all its directions moved alike, the rest moves as under
    AdamW."""
    student = {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear"}
    stage = {
        "name": "distil",
        "objective": {"kind": "cosine"},
        "steps": 1,
        "batch": 8,
        "weight_decay": 0.0,
        "warmup": 0.0,
        "dtype": "fp32",
    }
    start, moved = {}, {}
    batch = StageInProgress.batch
    monkeypatch.setattr(
        StageInProgress, "batch", lambda self: start.update(weights_of(self.student)) or batch(self)
    )
    for optimizer in ("adamw", "muon"):
        go(world, tmp_path / optimizer, student=student, stages=[{**stage, "optimizer": optimizer}])
        ended = load_file(tmp_path / optimizer / "student.safetensors")
        moved[optimizer] = {name: ended[name] - start[name] for name in ended}
    for name, step in moved["muon"].items():
        inside = ".layer." in name and step.ndim == 2
        assert torch.equal(step, moved["adamw"][name]) is not inside, name
        if inside:
            sizes = torch.linalg.svdvals(step)
            assert sizes[: len(sizes) // 2].min() > 0.4 * sizes.max(), name
            assert sizes.max() == pytest.approx(0.2 * max(step.shape) ** 0.5 * 1e-3, rel=0.35)


def weights_of(student: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in student.state_dict().items()}


def go_slowly(world: World, out: Path, resume: bool, changes: dict[str, Any]):
    """In a process to be killed: a checkpoint at every step."""
    checkpoint.EVERY_SECONDS = 0.0
    go(world, out, resume, **changes)


def newest(folder: Path) -> int:
    """Steps done as of the newest checkpoint, both stages counted."""
    done = (
        [p.name.split("-") for p in folder.glob("[0-9]*-*") if (p / "state.json").exists()]
        if folder.exists()
        else []
    )
    return max((STEPS * int(stage) + int(step) for stage, step in done), default=0)


def test_selection_keeps_the_best_not_the_last(world: World, tmp_path):
    stage = {
        "name": "distil",
        "objective": {"kind": "cosine"},
        "steps": 60,
        "batch": 16,
        "learning_rate": 0.3,
        "clip": None,
        "warmup": 0.0,
    }
    info = go(world, tmp_path / "a", stages=[stage], select={"suite": suite_of(world), "every": 5})
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["dev"])
    assert info["selected"]["score"] == best["dev"]
    assert info["selected"]["step"] == next(line["step"] for line in lines if line["dev"] == best["dev"])


def test_patience_stops_early(world: World, tmp_path):
    stage = {
        "name": "distil",
        "objective": {"kind": "cosine"},
        "steps": 500,
        "batch": 4,
        "learning_rate": 1.0,
        "clip": None,
        "warmup": 0.0,
    }
    info = go(
        world, tmp_path / "a", stages=[stage], select={"suite": suite_of(world), "every": 2, "patience": 3}
    )
    assert info["stages"][0]["steps"] < 500


@pytest.mark.parametrize(
    "student",
    [
        {"kind": "bert", "weights": "teacher", "layers": [1], "bottleneck": 8},
        {
            "kind": "bert",
            "weights": "teacher",
            "layers": [1],
            "pq_bytes": 8,
            "embeddings": {"weighting": "frequency"},
        },
        {"kind": "bert", "layers": 1, "width": 16, "trim": {}, "head": "linear_tanh"},
        {"kind": "bert", "weights": "teacher", "trim": {}, "bottleneck": 8},
        {"kind": "recurrent", "layers": 1, "bottleneck": 8},
        {"kind": "bert", "weights": "teacher", "layers": [0], "pq_bytes": 4, "pq_centroids": 300},
        {"kind": "static", "width": 12, "pq_bytes": 4, "head": "linear"},
        {"kind": "bilstm", "width": 12, "hidden": 8, "pq_bytes": 6},
        {"kind": "recurrent", "layers": [1], "repeats": 3, "position_ids": "pad", "trim": {"min_count": 3}},
        {
            "kind": "recurrent",
            "layers": 2,
            "repeats": 2,
            "embeddings": {"from": "random"},
            "head": "linear_tanh",
            "dims": 32,
        },
        {"kind": "bilstm", "width": 12, "hidden": 8, "trim": {"min_count": 2}},
        {"kind": "bilstm", "width": 12, "hidden": 8, "layers": 2, "readout": "max", "head": "linear"},
        {
            "kind": "bilstm",
            "width": 12,
            "hidden": 16,
            "readout": "mean",
            "head": "none",
            "embeddings": {"from": "random"},
        },
        {"kind": "static", "width": 32},
        {
            "kind": "static",
            "width": 16,
            "trim": {},
            "head": "linear_tanh",
            "embeddings": {"from": "random"},
        },
        {
            "kind": "static",
            "width": 8,
            "head": "linear",
            "head_bias": True,
            "embeddings": {"of": "token_embeddings"},
        },
    ],
    ids=lambda s: "-".join(str(v) for v in s.values())[:40],
)
def test_every_shape_trains_and_ignores_padding(world: World, tmp_path, student: dict[str, Any]):
    go(world, tmp_path / "a", student=student)
    opened = run.open_run(tmp_path / "a")
    module = opened.student()
    ids = torch.randint(
        5, min(100, len(opened.tokenizer())), (3, 7), generator=torch.Generator().manual_seed(0)
    )
    with torch.inference_mode():
        alone = module(ids[:1, :4], torch.ones(1, 4, dtype=torch.long))
        mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7, [1, 0, 0, 0, 0, 0, 0]])
        padded = module(ids, mask)[:1]
    assert torch.allclose(alone, padded, atol=1e-5)
    assert alone.norm() > 0


def test_all_the_teachers_layers_and_no_stages_is_the_teacher(world: World, tmp_path):
    go(world, tmp_path / "all", student={"kind": "bert", "weights": "teacher"}, stages=[])
    go(world, tmp_path / "itself", student={"kind": "teacher"}, stages=[])
    texts = sentences(20, seed=4)
    one, other = (run.open_run(tmp_path / name) for name in ("all", "itself"))
    a, b = (PreparedStudent.of(r).embed(texts) for r in (one, other))
    assert np.abs(a - b).max() < 1e-6
    assert one.parameters == other.parameters


def test_a_trimmed_student_keeps_the_teachers_rows(world: World, tmp_path):
    """All the teacher's layers behind a trimmed table, untrained, are the teacher on texts of kept pieces."""
    from edgedistill.data import corpus

    texts = "\n".join(sentences(12, seed=2))
    (world.data / "few.txt").write_text(texts, encoding="utf-8")
    changes = {"rows": {"files": ["few.txt"], "held_out": 2}, "stages": []}
    info = go(
        world, tmp_path / "trimmed", student={"kind": "bert", "weights": "teacher", "trim": {}}, **changes
    )
    go(world, tmp_path / "itself", student={"kind": "teacher"}, stages=[])
    one, other = (run.open_run(tmp_path / name) for name in ("trimmed", "itself"))
    spec = world.spec(**changes)
    assert spec.rows is not None
    built = corpus.build(spec.rows, Session(data=world.data), 0)
    kept = built.texts(range(built.training_count))
    a, b = (PreparedStudent.of(r).embed(kept) for r in (one, other))
    assert np.abs(a - b).max() < 1e-6
    assert len(one.tokenizer()) < len(other.tokenizer())
    assert other.parameters["embedding"] - info["parameters"]["embedding"] == 32 * (
        len(other.tokenizer()) - len(one.tokenizer())
    )


def test_a_static_student_begins_with_sif_weights_and_the_teachers_pieces(world: World, tmp_path):
    """No steps worth the name: what is in the run is what it began with."""
    from edgedistill.teacher import encoder

    stage = {
        "name": "distil",
        "objective": {"kind": "cosine"},
        "steps": 1,
        "batch": 4,
        "learning_rate": 1e-12,
    }
    go(
        world,
        tmp_path / "a",
        student={"kind": "static", "width": 32},
        stages=[stage],
        rows={"files": ["texts.txt"]},
    )
    opened = run.open_run(tmp_path / "a")
    student, words = opened.student(), opened.tokenizer()
    texts = (world.data / "texts.txt").read_text(encoding="utf-8").splitlines()
    counts = np.bincount(
        [piece for text in texts for piece in words(text)["input_ids"]], minlength=len(words)
    )
    share = counts / counts.sum()
    loaded = encoder.TeacherEncoder(recipe.Teacher(model=str(world.teacher)))
    found = student.weights.detach().numpy()
    assert np.allclose(found, 1e-3 / (1e-3 + share), rtol=1e-5)
    assert counts.min() == 0
    assert found.min() < 0.02 < 1 == found.max()
    assert np.allclose(
        student.embedding.weight[words.convert_tokens_to_ids(["cat", "dog"])].detach(),
        loaded.embed(["cat", "dog"]),
        atol=1e-4,
    )
    assert not student.embedding.weight[words.pad_token_id].any()


def test_longest_leaves_the_longer_texts_out(world: World, tmp_path):
    from edgedistill.data import corpus, token_cache
    from edgedistill.teacher import encoder

    spec = world.spec()
    built = corpus.build(spec.rows, Session(data=world.data), 0)
    cut = token_cache.TokenPass(
        built, encoder.TeacherEncoder(spec.teacher).tokenizer.backend_tokenizer, 48, 0, QUIET
    ).open()
    lengths = cut.lengths(np.arange(built.training_count))
    middle = int(np.median(lengths))
    short = np.flatnonzero(lengths <= middle)
    stage = {"name": "distil", "objective": {"kind": "cosine"}, "batch": 8, "skip_longer_than": middle}
    info = go(world, tmp_path / "short", stages=[stage])
    assert info["stages"][0]["steps"] == len(short) // 8
    with pytest.raises(
        UserError,
        match=r"stages\[0\].skip_longer_than: no text has 3 tokens or fewer; raise it",
    ):
        go(world, tmp_path / "none", stages=[{**stage, "skip_longer_than": 3}])


def test_what_is_refused_and_that_nothing_is_left(world: World, tmp_path):
    def refused(match: str, out: str = "x", **changes: Any):
        with pytest.raises(UserError, match=match):
            go(world, tmp_path / out, **changes)
        assert not (tmp_path / out).exists() and not resolve.unfinished_run(tmp_path / out).exists()

    refused(
        "student.layers: no layer 7 in a model with 2 layers; choose from 0 to 1",
        student={"kind": "bert", "weights": "teacher", "layers": [7]},
    )
    refused(
        "compares coordinates, the student has 16 and the teacher 32",
        student={"kind": "bert", "layers": 1, "width": 16},
    )
    refused("teacher.model: no such folder", teacher={"model": "/nowhere/at/all"})
    refused("student.layers: a block of 3", student={"kind": "recurrent"})
    refused("student.bottleneck: 33", student={"kind": "recurrent", "layers": 1, "bottleneck": 33})
    refused("if it is a hub id, set teacher.revision", teacher={"model": "owner/name"})
    refused("'missing.txt': no such file", rows={"files": ["missing.txt"]})
    with pytest.raises(UserError, match="nothing to resume"):
        go(world, tmp_path / "x", resume=True)


def test_trimming_needs_texts(world: World):
    from edgedistill.teacher import encoder

    spec = world.spec(rows=None, stages=[], student={"kind": "bilstm", "trim": {}})
    with pytest.raises(
        UserError, match="student.trim: keeps the tokens of the rows, and the recipe has none"
    ):
        student_tokenizer.build(spec, Models(encoder.TeacherEncoder(spec.teacher)), None, QUIET)


def test_an_existing_run_and_an_unfinished_one_are_left_alone(world: World, tmp_path):
    go(world, tmp_path / "a")
    with pytest.raises(UserError, match="exists already"):
        go(world, tmp_path / "a")
    resolve.unfinished_run(tmp_path / "b").mkdir()
    (resolve.unfinished_run(tmp_path / "b") / "recipe.yaml").write_text("name: other\n", encoding="utf-8")
    with pytest.raises(UserError, match="an unfinished run; continue it with --resume"):
        go(world, tmp_path / "b")
    with pytest.raises(UserError, match=r"run of another recipe \(name was 'other', is now 'tiny'\)"):
        go(world, tmp_path / "b", resume=True)
    with pytest.raises(UserError, match="its training has not finished"):
        run.open_run(tmp_path / "b")
    with pytest.raises(UserError, match="not a run"):
        run.open_run(tmp_path / "c")


def test_weights_of_another_vocabulary_are_refused(world: World, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path / "other"
    BertModel(
        BertConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    ).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]
    raw = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        folder
    )
    with pytest.raises(UserError, match="belong to another vocabulary; set student.tokenizer"):
        go(world, tmp_path / "x", student={"kind": "bert", "weights": str(folder), "head": "linear"})
    go(
        world,
        tmp_path / "y",
        student={"kind": "bert", "weights": str(folder), "tokenizer": str(folder), "head": "linear"},
    )
    assert run.open_run(tmp_path / "y").dims == 32


def test_two_stages_of_distilcse_train_the_student_without_its_projection(world: World, tmp_path):
    """Contrastive distillation through a head that is dropped, then triples on the student's own vectors,
    best on dev handed on."""
    write_triples(world, 60)
    (world.data / "leaks.txt").write_text("\n".join(sentences(60, seed=22)[:10]), encoding="utf-8")
    stages = [
        {"name": "distil", "objective": {"kind": "ckd", "queue": 64}, "steps": 20, "batch": 16},
        {
            "name": "tune",
            "objective": {"kind": "info_nce"},
            "rows": {"files": ["triples.tsv"], "columns": TRIPLE},
            "epochs": 4,
            "batch": 10,
        },
    ]
    student = {**world.recipe()["student"], "head_kept": False}
    said: list[str] = []
    corpus = {"files": ["texts.txt"], "exclude": ["leaks.txt"]}
    spec = world.spec(
        stages=stages,
        student=student,
        rows=corpus,
        select={"suite": suite_of(world), "every": 10, "patience": 3},
    )
    info = train.train(spec, tmp_path / "a", Session(data=world.data, log=said.append))
    assert any("60 read, 50 rows kept, of these 0 held out" in line for line in said)
    assert info["dims"] == 16
    assert info["stages"][1]["steps"] <= 4 * 50 // 10
    assert 0 < info["stages"][0]["temperature"] != 0.05 and "temperature" not in info["stages"][1], (
        "what ckd learned"
    )
    assert info["selected"]["stage"] == "tune"
    assert not [name for name in load_file(tmp_path / "a/student.safetensors") if "projection" in name]


def test_raw_targets_keep_the_lengths_of_the_teachers_embeddings(world: World, tmp_path):
    """The teacher ends in a layer that scales to unit length: raw targets are what goes into it."""
    from edgedistill.teacher.embedder import open_teacher
    from edgedistill.training.inputs.stage_targets import TargetReader
    from edgedistill.training.training_sources import TrainingSources

    for raw in (False, True):
        changes = {
            "teacher": {**world.recipe()["teacher"], "dtype": "fp32"},
            "targets": {"dims": 32, "raw": raw, "normalize": False},
        }
        spec = recipe.Recipe.model_validate(world.recipe(**changes))
        assert spec.rows is not None
        session = Session(data=world.data)
        texts = TrainingSources.of_recipe(spec, session).texts
        teacher = open_teacher(spec.teacher, Session(data=world.data))
        assert isinstance(teacher, TeacherEncoder)
        unread: Any = None  # the student, which these targets are not fitted to
        reader = TargetReader(spec, Models(teacher), texts, unread, session, tmp_path / str(raw))
        found = reader.of_texts[np.arange(20)]
        expected = teacher.embed(texts.sides[0].texts(np.arange(20)), "cpu", not raw)
        assert np.allclose(found, expected, rtol=2e-3, atol=2e-3)
        lengths = np.linalg.norm(found, axis=1)
        assert (np.ptp(lengths) > 0.1) == raw


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"targets": {"dims": 32, "raw": True}},
            "`raw` keeps the lengths that `normalize` removes; set normalize: false",
        ),
        (
            {
                "targets": {"dims": 32, "raw": True, "normalize": False},
                "student": {"kind": "teacher"},
                "stages": [],
            },
            "targets.raw: a reduced teacher reads embeddings of unit length; leave `raw` out",
        ),
    ],
)
def test_raw_targets_that_cannot_be(world: World, changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        recipe.Recipe.model_validate(world.recipe(**changes))
