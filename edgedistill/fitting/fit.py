"""The line: texts, check, candidates, their cost, the race, the survivors to the end, the winner as a recipe, a bundle and pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from edgedistill import files, machine, recipe, resolve
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.export import model_source
from edgedistill.fitting import contention, fit_page, front, latency, plan, processes, texts, winner, worker
from edgedistill.fitting.display import PAGE, shown
from edgedistill.fitting.pace import PACE, Pace
from edgedistill.fitting.plan import Fit, open_teacher
from edgedistill.fitting.processes import Presence
from edgedistill.fitting.request import FitRequest
from edgedistill.fitting.storage import RECIPE, RESULT, Storage, is_fit, result
from edgedistill.session import Session
from edgedistill.teacher.encoder import flush_denormals

MOST_WORKERS = 4


@dataclass(frozen=True)
class Conduct:
    """How a fit is run. resume: go on with one that was killed. pace: how its minutes are shared. workers: processes here, None: one a
    processor, at most MOST_WORKERS.
    """

    resume: bool = False
    pace: Pace = PACE
    workers: int | None = None


CONDUCT = Conduct()


def fit(request: FitRequest, out: Path, session: Session, conduct: Conduct = CONDUCT) -> dict[str, Any]:
    """Find the best student that keeps to the budget. Returns the content of fit.json.

    out: the fit's folder; a process that is given the same request and folder joins in. Raises UserError for what the request lacks, a
    budget that nothing meets, minutes too few, a folder of another fit, a full disk; CheckFailed where no finalist passes its checks, or
    where the winner keeps less than `min_kept`, after all is written.
    """
    started = time.time()
    _check_request(request)
    _check_folder(request, out, conduct.resume)
    with files.full_disk_as_user_error(out):
        begun = is_fit(out)
        done = result(out) if begun else None
        if done is not None:
            session.log(f"{out}: finished already")
        else:
            with _nothing_left_of(out, not begun):
                done = _run(request, out, replace(session, device=_device(session.device)), conduct, started)
    winner.check_kept(done["winner"], request.min_kept, done)
    return done


def _check_request(request: FitRequest) -> None:
    """Raise UserError for what can be seen before anything is read or opened."""
    texts.section(request)
    latency.check_target(request.budget.target)
    if request.suite is not None:
        scoring.suite(request.suite, request.data)
    if not resolve.is_run(request.teacher.model):
        try:
            folder = resolve.teacher_files(request.teacher, "--teacher")
        except UserError as error:
            renamed = (each.replace("--teacher.model", "--teacher").replace("set --teacher.", "give --") for each in error.problems)
            raise UserError(*renamed) from None
        model_source.check_encoder(folder, str(request.teacher.model), request.teacher.pooling, "teach")


def _check_folder(request: FitRequest, out: Path, resume: bool) -> None:
    """Raise UserError for a folder that is not this fit's, and for an unfinished one that nobody works on, unless it is to be resumed."""
    if not is_fit(out):
        if resume:
            raise UserError(f"{out}: nothing to resume; leave --resume out")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out}: exists already and is not a fit; give another --out")
        return
    Storage(out).agree(request.settings())
    if result(out) is None and not resume and not processes.any_alive(out):
        raise UserError(f"{out}: an unfinished fit; continue it with --resume, or delete it")


@contextmanager
def _nothing_left_of(out: Path, new: bool) -> Iterator[None]:
    """Remove a new fit's folder where an error ends it before anything is trained, so that it can be begun again with other settings."""
    try:
        yield
    except UserError:
        if new and is_fit(out) and Storage(out).get("schedule") is None and not processes.any_alive(out):
            shutil.rmtree(out)
        raise


def _device(asked: str) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    return "cuda" if asked in ("auto", "cuda") and torch.cuda.is_available() else "cpu"


def _run(request: FitRequest, out: Path, session: Session, conduct: Conduct, started: float) -> dict[str, Any]:
    """Plan, race and finish, together with other processes that do the same."""
    flush_denormals()
    storage = Storage(out)
    storage.agree(request.settings())
    workers = 1 if session.device == "cuda" else conduct.workers or min(MOST_WORKERS, machine.default_threads())
    with Presence(out) as presence, shown(storage, presence, session) as logged:
        at_work = Fit(request, out, storage, logged, conduct.pace, workers, open_teacher(request, storage, logged))
        _once(storage, presence, "schedule", "plans", lambda: plan.make(at_work, started))
        before = torch.get_num_threads()
        threads = contention.threads(workers)
        storage.set("threads", threads)
        with _helpers(at_work, threads if workers > 1 else 0):
            torch.set_num_threads(threads)
            worker.run(at_work, presence)
        torch.set_num_threads(before)
        _once(storage, presence, "finished", "exports and measures the best", lambda: _finish(at_work))
    found = result(out)
    assert found is not None
    return found


def _once(storage: Storage, presence: Presence, key: str, doing: str, work: Any) -> None:
    """Do what one process has to do for all, unless `key` says that it is done; wait where another one is at it."""
    owner = f"{key} by"
    while storage.get(key) is None:
        with storage.turn():
            mine = storage.get(key) is None and not (storage.get(owner) != presence.name and presence.alive(storage.get(owner)))
            if mine:
                storage.set(owner, presence.name)
        if mine:
            presence.doing = doing
            try:
                work()
            except BaseException:
                storage.set(owner, None)
                raise
            return
        presence.doing = "waits for the others"
        time.sleep(worker.POLL_S)


@contextmanager
def _helpers(fit: Fit, threads: int) -> Iterator[None]:
    """Further processes of the race on this machine, one fewer than `fit.workers`; they end with it."""
    command = [
        sys.executable,
        "-m",
        "edgedistill.fitting.worker",
        str(fit.folder),
        "--threads",
        str(threads),
        "--workers",
        str(fit.workers),
    ]
    command += [
        "--device",
        fit.session.device,
        "--parent",
        str(os.getpid()),
        *(["--data", str(fit.request.data)] if fit.request.data else []),
        *(["--trust-remote-code"] if fit.session.remote_code else []),
    ]
    environment = {**processes.environment(), "OMP_NUM_THREADS": str(threads)}
    started = []
    try:
        for number in range(1, fit.workers if threads else 1):
            log = (fit.folder / "processes" / f"worker-{number}.log").open("ab")
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
            log.close()
        yield
        for process in started:
            process.wait()
    finally:
        for process in started:
            process.kill()
            process.wait()


def _finish(fit: Fit) -> None:
    """Choose the winner, write fit.json and the page as they stay."""
    won = winner.choose(fit)
    found = front.read(fit.storage, [], won)
    names = {"recipe": RECIPE, "bundle": winner.BUNDLE, "run": winner.RUN, "page": PAGE, "report": winner.REPORT}
    done = {
        "winner": won,
        **{name: str(fit.folder / path) for name, path in names.items()},
        "budget": found.budget,
        "schedule": fit.storage.get("schedule"),
        "texts": found.texts,
        "candidates": [{name: value for name, value in row.__dict__.items() if name != "racing"} for row in found.rows],
        "not_raced": found.over_budget,
        "seconds": round(time.time() - fit.storage.get("started"), 1),
    }
    fit_page.write(fit.folder / PAGE, found)
    files.write_json(fit.folder / RESULT, done)
    fit.storage.set("finished", True)


def summary(done: dict[str, Any]) -> str:
    """The result in a few lines."""
    won, score = done["winner"], done["winner"]["score"]
    parts = f"nearest neighbours in common {score['neighbours']:.3f}, cosines {score['cosines']:.3f}"
    kept = f", keeps {won['kept']:.1%} of its teacher's score on {won['suite']}" if won.get("kept") is not None else ""
    lines = [
        f"{won['candidate']} in {won['precision']}: {won['size_mb']:.2f} MB with tokenizer.json (graph {won['graph_mb']:.2f}), "
        f"p50 {won['p50_ms']:.3f} ms",
        f"agreement {score['agreement']:.3f} ({parts}){kept}",
        f"{done['bundle']}  the bundle",
        f"{done['recipe']}  its recipe: edgedistill train {done['recipe']}",
        f"{done['page']}  all {len(done['candidates'])} candidates, and why the others lost",
    ]
    return "\n".join(lines)


def teacher(model: str, revision: str | None, pooling: str | None) -> recipe.Teacher:
    """The teacher of a command's options. Raises UserError where they do not fit together."""
    given = {"model": model, "revision": revision, "pooling": pooling}
    spec = recipe.parse(
        {"name": "fit", "teacher": {k: v for k, v in given.items() if v is not None}, "student": {"kind": "teacher"}}, "--teacher"
    )
    return spec.teacher
