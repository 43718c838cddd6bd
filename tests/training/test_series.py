"""edgedistill train A B …: one after the other, none lost by another's failure."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgedistill import recipe
from edgedistill.cli import app
from edgedistill.errors import CheckFailed, UserError
from edgedistill.files import sha256_file
from edgedistill.session import Session
from edgedistill.training import checkpoint, stage_in_progress, train
from edgedistill.training.series import train_series
from tests.conftest import World


def made(world: World, name: str, steps: int = 4, **changes: object) -> recipe.Recipe:
    stage = {"name": "distil", "objective": {"kind": "cosine"}, "steps": steps, "batch": 8, "bucket": 2}
    return recipe.parse(world.recipe(name=name, stages=[{**stage, **changes}]), "test")


def go(
    specs: list[recipe.Recipe],
    world: World,
    folder: Path,
    resume: bool = False,
    told: list[str] | None = None,
) -> dict[str, object]:
    return train_series(
        specs, folder, Session(data=world.data, log=(told if told is not None else []).append), resume
    )


def test_a_series_makes_the_same_bytes_and_embeds_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a precision of its own, each as if it were alone."""
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    specs = [made(world, "a"), made(world, "b", dtype="bf16"), made(world, "c", learning_rate=1e-2)]
    told: list[str] = []
    found = go(specs, world, tmp_path / "runs", told=told)
    assert [(each["recipe"], each["status"], each["run"]) for each in found["runs"]] == [  # type: ignore[attr-defined]
        (name, "trained", str(tmp_path / "runs" / name)) for name in "abc"
    ]
    assert sum("teacher: embedding" in line for line in told) == 1
    train.train(specs[2], tmp_path / "alone", Session(data=world.data, log=told.append))
    alone, among = (
        sha256_file(folder / "student.safetensors") for folder in (tmp_path / "alone", tmp_path / "runs/c")
    )
    assert alone == among != sha256_file(tmp_path / "runs/a/student.safetensors")


def test_one_failure_does_not_lose_the_others_and_resume_takes_up_the_rest(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bad: more in the queue than texts; bug: an error of ours; then: a killed run goes on, a finished one is
    kept."""
    bad = made(world, "bad", objective={"kind": "congen", "queue": 4_000, "alpha": 1.0})
    specs = [made(world, "a"), bad, made(world, "bug"), made(world, "b", steps=8)]
    real = train.train

    def falls(spec: recipe.Recipe, *rest: object, **options: object) -> object:
        if spec.name == "bug":
            raise RuntimeError("ours")
        return real(spec, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(train, "train", falls)
    with pytest.raises(
        CheckFailed,
        match=r"2 of 4 recipes failed, the others are done; after fixing them, .*\nbad: stages.*a queue of "
        r"4,000",
    ) as caught:
        go(specs, world, tmp_path)
    assert [each["status"] for each in caught.value.details["runs"]] == [
        "trained",
        "failed",
        "failed",
        "trained",
    ]
    assert caught.value.details["runs"][2]["error"] == "RuntimeError: ours"
    monkeypatch.setattr(train, "train", real)

    whole, first = (
        sha256_file(tmp_path / "b/student.safetensors"),
        (tmp_path / "a/run.json").stat().st_mtime_ns,
    )
    for file in sorted((tmp_path / "b").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (tmp_path / "b").rmdir()
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(
        stage_in_progress.StageInProgress,
        "hand_over",
        lambda self: (_ for _ in ()).throw(KeyboardInterrupt()),
    )
    with pytest.raises(KeyboardInterrupt):
        go([specs[0], specs[3]], world, tmp_path, resume=True)
    monkeypatch.undo()
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(world.folder / "cache"))
    told: list[str] = []
    found = go([specs[0], specs[3]], world, tmp_path, resume=True, told=told)
    assert [each["status"] for each in found["runs"]] == ["kept", "trained"]  # type: ignore[attr-defined]
    assert any("resuming from step" in line for line in told)
    assert sha256_file(tmp_path / "b/student.safetensors") == whole
    assert (tmp_path / "a/run.json").stat().st_mtime_ns == first
    with pytest.raises(
        UserError,
        match=r"1 of 2 recipes failed, the others are done(.|\n)*a: a finished run of another recipe",
    ) as theirs:
        go([made(world, "a", steps=5), specs[3]], world, tmp_path, resume=True)
    assert [each["status"] for each in theirs.value.details["runs"]] == ["failed", "kept"]
    with pytest.raises(
        UserError, match="a: exists already; continue with --resume, which keeps finished runs"
    ):
        go([specs[0], made(world, "c")], world, tmp_path)
    assert not (tmp_path / "c").exists()


def test_what_a_series_refuses_before_it_trains(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="train: two recipes are named a, and would write the same"):
        go([made(world, "a"), made(world, "b"), made(world, "a")], world, tmp_path)
    for name in ("a", "b"):
        Path(f"{name}.yaml").write_text(json.dumps(world.recipe(name=name)), encoding="utf-8")
    refused = CliRunner().invoke(app, ["train", "a.yaml", "b.yaml", "--out", "x"])
    assert isinstance(refused.exception, UserError)
    assert str(refused.exception).startswith("--out: one folder for 2 recipes; leave it out")
    missing = CliRunner().invoke(
        app, ["train", "a.yaml", "b.yaml", "--set", "corpus.texts.0=no.txt", "--data", str(world.data)]
    )
    assert isinstance(missing.exception, UserError)
    assert [line.split(":")[:2] for line in missing.exception.problems] == [
        ["a", " corpus.texts"],
        ["b", " corpus.texts"],
    ]
    assert sorted(os.listdir()) == ["a.yaml", "b.yaml"]


def test_the_command_tells_one_object(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(f"{name}.yaml").write_text(json.dumps(world.recipe(name=name)), encoding="utf-8")
    arguments = [
        "train",
        "a.yaml",
        "b.yaml",
        "--data",
        str(world.data),
        "--set",
        "stages.0.steps=2",
        "--device",
        "cpu",
        "--json",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert [(each["recipe"], each["run"], each["status"]) for each in found["runs"]] == [
        ("a", "runs/a", "trained"),
        ("b", "runs/b", "trained"),
    ]
    assert found["runs"][0]["parameters"]["total"] > 0


@pytest.mark.parametrize("command", ["train", "check", "export"])
def test_what_runs_in_one_process_is_refused_in_several(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """As torchrun and accelerate launch start them: they would overwrite each other's files."""
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in paths:
        path.write_text(recipe.dump(made(world, path.stem)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given = [str(paths[0])] if command == "export" else [*map(str, paths), "--data", str(world.data)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    name = "train of several recipes" if command == "train" else command
    with pytest.raises(
        UserError, match=rf"^{name}: started as one of 2 processes \(WORLD_SIZE\), but .*launch$"
    ):
        CliRunner().invoke(app, [command, *given], catch_exceptions=False)
    assert not (tmp_path / "runs").exists()
