"""Make and measure edgedistill's peers: the same teacher, texts, machine and suites, each peer in its own
environment.

python bench/peers/run.py --data DIR [--minutes 10] [--only NAME …]    make what is not made, measure accuracy
python bench/peers/run.py --data DIR --time [--rounds 5]                 time them all in turns, in rounds

`make peers` does the first, after it has made the environments; `make peers PEERS_OPTIONS=--time` the second.
What was made lies in --work, and is not made again; --again NAME does. The report keeps the rows of peers
that are not asked for. A peer that fails is a row with its error. Accuracy is edgedistill's own `bench`
suites; the embeddings come from harness.py, which runs in the peer's environment.

--time starts every peer in a process of its own, on --threads processors, and gives each its turn in every
round: single texts, then all texts in one call. Reported are medians over the rounds, and the median of the
ratios to sentence-transformers on torch in the same round. That peer is there twice: the ratio of its two
processes is what this machine cannot tell apart.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peer_list import BASELINE, OURS, PEERS, Peer

from edgedistill import files, machine, resolve, run
from edgedistill.data import readers
from edgedistill.errors import CheckFailed, UserError, unknown_name
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites.cosines import unit

ROOT = Path(__file__).resolve().parents[2]
HARNESS, REPORT = Path(__file__).with_name("harness.py"), ROOT / "bench" / "reports" / "peers.json"
TEACHER = "packaged:all-MiniLM-L6-v2"
SUITES = {"sts7": "sts7", "SciFact": "retrieval:SciFact", "Cranfield": "retrieval:Cranfield"}
GENERAL, COLLECTION = "unlabeled/*.txt.gz", "ir/scifact"  # below --data: what students learn from
TEXTS = 60_000  # general texts that every trainer may use, drawn evenly from all
SAMPLE, SAMPLE_TEXTS, TIMED_TEXTS = "sample.npy", 192, 256
CHUNK_TEXTS = 1024
PATIENCE_S, TIMING_PATIENCE_S = 4 * 3600, 60  # for an answer
SAME_COSINE = 0.99999  # of every text of the sample: then accuracy is the same too
AGAIN = f"{BASELINE}, again"


class PeerFailed(Exception):
    """A peer did not do what it was asked; the message is its error in one line."""


class Process:
    """A peer's harness in its environment: asks it, and reads its answers."""

    def __init__(self, python: Path, what: str, peer: Peer, task: dict[str, Any]) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self.process = subprocess.Popen(
            [python, HARNESS, what, peer.library, peer.variant, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment(python, task["threads"]),
        )

    def answer(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Its next line. Raises PeerFailed where there is none."""
        assert self.process.stdout is not None
        alarm = threading.Timer(patience_s, self.process.kill)
        alarm.start()
        line = self.process.stdout.readline()
        in_time = alarm.is_alive()
        alarm.cancel()
        if line:
            return dict(json.loads(line))
        self.process.wait()
        self.errors.seek(0)
        late = "" if in_time else f"no answer within {patience_s:g} s"
        raise PeerFailed(late or last_error(self.errors.read()) or f"exit code {self.process.returncode}")

    def ask(self, patience_s: float = PATIENCE_S, **request: Any) -> dict[str, Any]:
        """Send a request and read its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer(patience_s)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.errors.close()


def environment(python: Path, threads: int) -> dict[str, str]:
    """The variables of a peer's process: so many threads, which do not spin, and no hub."""
    counted = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
    found = {**os.environ, **dict.fromkeys(counted, str(threads)), **dict.fromkeys(offline, "1")}
    found |= {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    return {**found, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def last_error(log: str) -> str:
    """The last line of a log that names an error, at most 200 characters of it; or its last line."""
    found = [line.strip() for line in log.splitlines() if line.strip()]
    named = [
        line
        for line in found
        if line.split(" ")[0].endswith(("Error:", "Exception:", "Exit:", "[FAIL]", "ERROR:"))
    ]
    return (named or found or [""])[-1][:200]


class Bench:
    """The peers' environments, what they are made from, and where it lies."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.work: Path = arguments.work.absolute()
        self.data: Path = arguments.data
        self.minutes, self.threads = arguments.minutes, arguments.threads
        folder = Path(os.environ.get("EDGEDISTILL_ENVIRONMENTS") or ROOT / ".environments")
        self.environments = folder.absolute()
        self.work.mkdir(parents=True, exist_ok=True)

    def python(self, peer: Peer) -> Path:
        """The interpreter of a peer's environment. Raises PeerFailed where it could not be made."""
        if peer.environment == OURS:
            return Path(sys.executable)
        folder = self.environments / peer.environment
        if (folder / "installed").exists():
            return folder / "bin" / "python"
        log = folder / "install.log"
        reason = last_error(log.read_text(encoding="utf-8")) if log.exists() else "not made"
        raise PeerFailed(f"no environment {peer.environment}: {reason}")

    def task(self, name: str) -> dict[str, Any]:
        """What a peer's harness gets, see harness.Task."""
        teacher = resolve.model_files(resolve.resolve(TEACHER), None, "teacher")
        found = {"folder": self.folder(name), "teacher": teacher, "bundle": self.work / "teacher-bundle"}
        found |= {"texts": self.work / "texts.txt", "documents": self.work / "documents.txt"}
        return {
            **{key: str(path) for key, path in found.items()},
            "minutes": self.minutes,
            "threads": self.threads,
        }

    def write(self, path: Path, report: dict[str, Any]) -> None:
        """Write a report in which no path of this machine stands."""
        text = files.json_text(report, indent=2)
        teacher = resolve.model_files(resolve.resolve(TEACHER), None, "teacher")
        known = {self.work: "runs/peers", teacher: "teacher", self.environments: "environments"}
        known |= {Path(self.data or ROOT).absolute(): "data", ROOT: ".", Path(sys.prefix): "environment"}
        for place, name in sorted(known.items(), key=lambda each: -len(str(each[0]))):
            text = text.replace(str(place), name)
        files.write_text(path, f"{text}\n")

    def folder(self, name: str) -> Path:
        """The folder of what a peer makes."""
        return self.work / "".join(letter if letter.isalnum() else "-" for letter in name)

    def nothing_to_make(self, name: str) -> bool:
        """Whether a peer is there without being made, such as a student that ships."""
        source = HARNESS.with_name("libraries") / f"{PEERS[name].library}.py"
        return f"make_{PEERS[name].variant}(" not in source.read_text(encoding="utf-8")

    def write_texts(self) -> None:
        """Write what students may learn from: general texts, and the documents of one collection."""
        for name, write in (("texts.txt", general_texts), ("documents.txt", documents)):
            if not (self.work / name).exists():
                files.write_text(self.work / name, "".join(f"{text}\n" for text in write(self.data)))

    def make(self, name: str) -> dict[str, Any]:
        """Make a peer, unless it is there. Returns the minutes it took, by the clock and of a processor, and
        what its library says of it."""
        peer, done = PEERS[name], self.folder(name) / "made.json"
        if not done.exists():
            python, started = self.python(peer), time.perf_counter()
            process = Process(python, "make", peer, self.task(name))
            try:
                facts = process.answer()
            finally:
                process.close()
            minutes = (time.perf_counter() - started) / 60
            done.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(done, {"clock_minutes": minutes, **facts})
        return dict(files.read_json(done))

    def opened(self, name: str) -> Process:
        """Start a peer's process that embeds. Its first answer is about the peer. Raises PeerFailed where it
        was not made."""
        after = PEERS[name].after
        for each in [name] if after is None else [str(after), name]:
            if not (self.folder(each) / "made.json").exists() and not self.nothing_to_make(each):
                raise PeerFailed(f"{each} is not made yet; run without --time")
        return Process(self.python(PEERS[name]), "serve", PEERS[name], self.task(name))

    def measured(self, name: str, known: list[dict[str, Any]]) -> dict[str, Any]:
        """A peer's row: accuracy on the suites, drift, size. Raises PeerFailed.

        Where a row of `known` has the same embeddings of the sample, its accuracy is this peer's: `same_as`.
        """
        process = self.opened(name)
        try:
            about, remote = process.answer(), Remote(process, self.folder(name) / "embeddings")
            together, alone = (unit(remote.encode(self.sample(), "text", alone)) for alone in (False, True))
            np.save(self.folder(name) / SAMPLE, together)
            found = {**about, "dims": remote.dims, "drift": float(1 - (together * alone).sum(1).min())}
            for other in known:
                if other["name"] != name and "same_as" not in other and self.same(other, together):
                    return {**found, "quality": other["quality"], "same_as": other["name"]}
            encoder = scoring.Encoder(*(remote.role(role) for role in ("text", "query", "document")))
            quality = {
                suite: scoring.evaluate(scoring.suite(given, self.data), encoder)["average"]
                for suite, given in SUITES.items()
            }
            return {**found, "quality": quality}
        finally:
            process.close()

    def same(self, row: dict[str, Any], embeddings: np.ndarray) -> bool:
        """Whether a peer of the report has these embeddings (n, d) of the sample."""
        path = self.folder(row["name"]) / SAMPLE
        if "quality" not in row or not path.exists():
            return False
        theirs = np.load(path)
        return theirs.shape == embeddings.shape and bool(((theirs * embeddings).sum(1) > SAME_COSINE).all())

    def sample(self) -> list[str]:
        """Texts of every length: sentences, and documents."""
        chosen = np.random.default_rng(1).choice(documents(self.data), SAMPLE_TEXTS // 4, replace=False)
        return [*self.sentences(SAMPLE_TEXTS * 3 // 4), *chosen.tolist()]

    def sentences(self, count: int) -> list[str]:
        """Sentences of sts7, the same every time."""
        return scoring.suite("sts7", self.data).sample(count)


class Remote:
    """A peer's process as an encoder. Embeddings are kept below `folder`, so an interrupted run goes on."""

    def __init__(self, process: Process, folder: Path) -> None:
        self.process, self.folder, self.dims = process, folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    def encode(self, texts: list[str], role: str, alone: bool = False) -> np.ndarray:
        """Embed texts, CHUNK_TEXTS a request."""
        chunks = [texts[start : start + CHUNK_TEXTS] for start in range(0, len(texts), CHUNK_TEXTS)]
        return np.concatenate([self._chunk(chunk, role, alone) for chunk in chunks])

    def _chunk(self, texts: list[str], role: str, alone: bool) -> np.ndarray:
        asked = json.dumps([role, alone, texts])
        kept = self.folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:24]}.npy"
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=self.folder) as name:
                given, out = Path(name) / "texts.json", Path(name) / "embeddings.npy"
                given.write_text(json.dumps(texts), encoding="utf-8")
                self.process.ask(do="encode", texts=str(given), role=role, alone=alone, out=str(out))
                out.replace(kept)
        rows = np.load(kept)
        self.dims = rows.shape[1]
        return np.asarray(rows)

    def role(self, role: str) -> Any:
        """texts -> embeddings, as queries, documents or texts that are compared with each other."""
        return lambda texts: self.encode(texts, role)


def general_texts(data: Path) -> list[str]:
    """TEXTS of the general texts below `data`, drawn evenly, in an order of their own."""
    paths = sorted(data.glob(GENERAL))
    if not paths:
        raise UserError(f"{data}: no {GENERAL}; the peers' students learn from these texts")
    texts = list(dict.fromkeys(text for path in paths for text in readers.texts_in(path)))
    chosen = np.random.default_rng(0).permutation(len(texts))[:TEXTS]
    return [texts[at] for at in chosen]


def documents(data: Path) -> list[str]:
    """The documents of the collection that `adapt` learns."""
    (task,) = scoring.suite(SUITES["SciFact"], data).tasks.values()
    return [text for _, texts in task.chunks() for text in texts if text]


def timed(bench: Bench, names: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the peers in turns. Returns {"about": {name: …}, "peers": {name: medians and rounds}, "failed":
    {name: error}, …}."""
    given, until = bench.work / "timed.json", time.perf_counter() + 60 * arguments.limit_minutes
    files.write_text(given, json.dumps(bench.sentences(TIMED_TEXTS)))
    running, failed, about = dict[str, Process](), dict[str, str](), dict[str, dict[str, Any]]()
    rounds, longest_s = list[dict[str, dict[str, Any]]](), 0.0
    try:
        waiting = [*names, AGAIN]
        while waiting:  # two at a time: most of a start is reading and importing
            pair, waiting = waiting[:2], waiting[2:]
            for name in pair:
                with failing(name, failed):
                    running[name] = bench.opened(BASELINE if name == AGAIN else name)
            for name in pair:
                with failing(name, failed):
                    about[name] = running[name].answer(TIMING_PATIENCE_S)
                    keep_on(running[name].process.pid, bench.threads)
        while len(rounds) < arguments.rounds and (not rounds or time.perf_counter() + longest_s < until):
            order, began = list(about)[:: -1 if len(rounds) % 2 else 1], time.perf_counter()
            rounds.append({})
            for name in order:
                with failing(name, failed):
                    request = {"do": "time", "texts": str(given), "seconds": arguments.seconds}
                    rounds[-1][name] = running[name].ask(TIMING_PATIENCE_S, **request)
            longest_s = max(longest_s, time.perf_counter() - began)
            print(f"round {len(rounds)} of {arguments.rounds}: {longest_s:.0f} s at most", flush=True)
    finally:
        for process in running.values():
            process.close()
    if BASELINE in failed:
        raise UserError(f"{BASELINE}, which times are compared with: {failed[BASELINE]}; see runs/peers")
    found = {"about": about, "failed": failed, "rounds": len(rounds), "seconds": arguments.seconds}
    return {
        **found,
        "peers": summary([{k: v for k, v in each.items() if k not in failed} for each in rounds]),
    }


@contextlib.contextmanager
def failing(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Note a peer's first error; what else is asked of it is no new one."""
    try:
        yield
    except PeerFailed as error:
        failed.setdefault(name, str(error))
    except KeyError:
        assert name in failed


def keep_on(process: int, threads: int) -> None:
    """Keep all threads of a process on as many processors, the same for every peer, where that can be."""
    if hasattr(os, "sched_setaffinity"):
        cores = set(sorted(os.sched_getaffinity(0))[:threads])
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Medians over rounds of each peer, and of its ratios to the baseline in the same round: how many times
    as fast."""
    found = dict[str, dict[str, Any]]()
    for name in rounds[0]:
        mine, base = [each[name] for each in rounds], [each[BASELINE] for each in rounds]
        speed_single = [b["p50_ms"] / m["p50_ms"] for m, b in zip(mine, base, strict=True)]
        speed_batch = [m["texts_s"] / b["texts_s"] for m, b in zip(mine, base, strict=True)]
        found[name] = {
            "p50_ms": float(np.median([each["p50_ms"] for each in mine])),
            "texts_s": float(np.median([each["texts_s"] for each in mine])),
            "peak_rss_bytes": max(each["peak_rss_bytes"] for each in mine),
            "times_as_fast": {
                "single": float(np.median(speed_single)),
                "batch": float(np.median(speed_batch)),
            },
            "between_rounds": {
                "single": [min(speed_single), max(speed_single)],
                "batch": [min(speed_batch), max(speed_batch)],
            },
            "rounds": mine,
        }
    return found


def described(name: str) -> dict[str, Any]:
    """What a row says of a peer before it is opened."""
    peer = PEERS[name]
    shown = {"name": name, "group": peer.group, "ours": peer.ours, "how": peer.how}
    return {**shown, "environment": peer.environment}


def row(bench: Bench, name: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    """Make and measure a peer; {…, error} where it fails."""
    try:
        made = bench.make(name)
        shown = {**described(name), "minutes": made.pop("processor_minutes"), "made": made}
        return {**shown, **bench.measured(name, known)}
    except (PeerFailed, CheckFailed) as error:
        return {**described(name), "error": str(error)}


def timed_report(report: dict[str, Any], found: dict[str, Any], threads: int) -> dict[str, Any]:
    """A report with the times of a run of `timed`. Peers that were not asked for keep theirs, which are
    compared with the baseline of their own run."""
    timed_at = run.provenance()["made_at"]
    known = {each["name"]: dict(each) for each in report.get("rows", [])}
    for name in found["failed"]:
        known.get(name, {}).pop("time", None)
    for name, about in found["about"].items():
        if name != AGAIN:
            known[name] = {**described(name), **about, **known.get(name, {})}
            if name in found["peers"]:
                known[name]["time"] = {**found["peers"][name], "timed_at": timed_at}
    timing = {"timed_at": timed_at}
    timing |= {key: found[key] for key in ("failed", "rounds", "seconds")}
    timing |= {"threads": threads, "again": found["peers"].get(AGAIN), "machine": machine.here()}
    rows = [known[name] for name in PEERS if name in known]
    return {**report, "schema": 1, "bench": "peers", "rows": rows, "timing": timing}


def merged(before: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a report with these in place of those of the same name, in the order of PEERS. A row keeps
    its times where its weights are as large as before."""
    known = {each["name"]: each for each in before.get("rows", [])}
    for each in rows:
        former = known.get(each["name"], {})
        same = former.get("size_bytes") == each.get("size_bytes")
        known[each["name"]] = {**each, **({"time": former["time"]} if same and "time" in former else {})}
    return [known[name] for name in PEERS if name in known]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("EDGEDISTILL_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "peers")
    parser.add_argument("--out", type=Path, default=REPORT)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(PEERS))
    parser.add_argument("--again", nargs="*", metavar="NAME", default=[], help="make these again")
    parser.add_argument(
        "--minutes", type=float, help="of each that trains, fit and adapt too; by default the report's, or 10"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of a round's two timings")
    parser.add_argument("--limit-minutes", type=float, default=8, help="no round starts that would end later")
    arguments = parser.parse_args()
    try:
        asked(arguments)
    except UserError as error:
        sys.exit("\n".join(error.problems))


def saved(path: Path) -> dict[str, Any]:
    """The report that is there, or an empty one."""
    return dict(files.read_json(path)) if path.exists() else {}


def asked(arguments: argparse.Namespace) -> None:
    """Do what the command line asks for, and write the report."""
    for name in [*arguments.only, *arguments.again]:
        if name not in PEERS:
            raise UserError(unknown_name("peer", name, PEERS))
    report = saved(arguments.out)
    known = report.get("minutes", arguments.minutes or 10)
    arguments.minutes = arguments.minutes or known
    if arguments.minutes != known:
        way_out = "leave --minutes out, or name another file with --out"
        raise UserError(f"{arguments.out}: what trains had {known:g} minutes in its rows; {way_out}")
    bench = Bench(arguments)
    if arguments.time:
        names = [name for name in PEERS if name in arguments.only or name == BASELINE]
        found = timed(bench, names, arguments)
        bench.write(arguments.out, timed_report(report, found, arguments.threads))
        return
    bench.write_texts()
    for name in arguments.only:
        if name in arguments.again:
            shutil.rmtree(bench.folder(name), ignore_errors=True)
        if PEERS[name].after is not None:
            bench.make(str(PEERS[name].after))
        found_row = row(bench, name, report.get("rows", []))
        print(json.dumps(found_row), flush=True)
        report = saved(arguments.out)  # another run may have added to it
        report |= {"schema": 1, "bench": "peers", "rows": merged(report, [found_row])}
        report |= {
            "minutes": arguments.minutes,
            "texts": TEXTS,
            "machine": machine.here(),
            **run.provenance(),
        }
        bench.write(arguments.out, report)


if __name__ == "__main__":
    main()
