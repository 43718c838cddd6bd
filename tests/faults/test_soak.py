"""Hours of use in minutes: memory stays flat, and the same text has the same embedding in the end.

export EDGEDISTILL_SOAK_MINUTES=30 EDGEDISTILL_FAULTS=bench/reports/faults.json
python -m pytest -m slow tests/faults/test_soak.py
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import edgedistill
from edgedistill.runtime import golden_file
from tests.faults.record import record

MINUTES = float(os.environ.get("EDGEDISTILL_SOAK_MINUTES", 1))
CLIENTS = 32
WARM = 0.2  # share of the time after which memory counts
GROWTH_MB = 8.0  # at most, after that
LEAST_COSINE = 0.9  # of a text in two batches, in int8
SCRIPTS = ((0x20, 0x7E), (0xA1, 0x24F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x621, 0x64A))
SCRIPTS += ((0x905, 0x939), (0xE01, 0xE2E), (0x3041, 0x3096), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3))
SCRIPTS += ((0x1F300, 0x1F64F), (0x0, 0x1F), (0x200B, 0x200F))


def text(draw: random.Random) -> str:
    """Up to some 3,000 characters of one or two scripts, with spaces now and then."""
    scripts = draw.choices(SCRIPTS, weights=[6] + [1] * (len(SCRIPTS) - 1), k=2)
    length = round(3 ** draw.uniform(0, 7.3))
    letters = [chr(draw.randint(*draw.choice(scripts))) for _ in range(length)]
    return "a" + "".join(" " if draw.random() < 0.15 else letter for letter in letters)


def resident_mb(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def flat(memory: list[tuple[float, float]], seconds: float) -> dict[str, float]:
    """memory: (seconds since the start, MB). After the warm-up it may grow by no more than GROWTH_MB."""
    later = [size for at, size in memory if at >= WARM * seconds]
    first, last = (float(np.median(part)) for part in (later[: len(later) // 4], later[-len(later) // 4 :]))
    assert last - first <= GROWTH_MB, f"{first:.0f} MB, then {last:.0f}"
    return {"rss_mb": round(first, 1), "growth_mb": round(last - first, 1)}


@pytest.mark.slow
def test_encode_for_a_while():
    bundle = edgedistill.load("nano", threads=1)
    golden = golden_file.read(bundle.folder, bundle.manifest)
    probes = [text for (text,) in golden.items]
    before = [bundle.encode(each).tobytes() for each in probes]
    draw, memory, count, seconds = random.Random(0), [], 0, 60 * MINUTES
    started = time.monotonic()
    while (passed := time.monotonic() - started) < seconds:
        texts = [text(draw) for _ in range(draw.choice((1, 1, 2, 7, 64)))]
        rows = bundle.encode(texts)
        assert rows.shape == (len(texts), bundle.dims[0]) and np.isfinite(rows).all()
        count += len(texts)
        memory.append((passed, resident_mb(os.getpid())))
    assert [bundle.encode(each).tobytes() for each in probes] == before, "an embedding has changed"
    record("soak", "encode", minutes=MINUTES, texts=count, drifted=0, **flat(memory, seconds))


@pytest.mark.slow
@pytest.mark.enable_socket
@pytest.mark.allow_hosts(["127.0.0.1"])
def test_the_server_for_a_while():
    """32 clients that send texts of all lengths, one request after the other: each answer is the bundle's, up
    to what the scales of int8 change, which are those of a batch."""
    openai = pytest.importorskip("openai")
    bundle = edgedistill.load("nano", threads=1)
    draw = random.Random(1)
    texts = [text(draw) for _ in range(500)]
    expected = bundle.encode(texts)
    command = [sys.executable, "-m", "edgedistill", "serve", "nano", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        wait_for(port)
        started, memory, seconds = time.monotonic(), [], 60 * MINUTES

        def client(number: int) -> tuple[Counter[str], float]:
            own = openai.OpenAI(
                api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0, timeout=120
            )
            choose, found, worst = random.Random(number), Counter[str](), 1.0
            while time.monotonic() - started < seconds:
                some = choose.sample(range(len(texts)), choose.choice((1, 3, 20)))
                try:
                    answer = own.embeddings.create(input=[texts[at] for at in some], model="nano")
                except openai.APIStatusError as error:
                    found[str(error.status_code)] += 1
                    time.sleep(1)
                    continue
                found["200"] += 1
                found["texts"] += len(some)
                rows = np.array([each.embedding for each in answer.data])
                worst = min(worst, float((rows * expected[some]).sum(1).min()))
            return found, worst

        with ThreadPoolExecutor(CLIENTS) as pool:
            waiting = [pool.submit(client, number) for number in range(CLIENTS)]
            while (passed := time.monotonic() - started) < seconds:
                memory.append((passed, resident_mb(process.pid)))
                time.sleep(0.5)
            results = [each.result() for each in waiting]
        process.terminate()
        assert process.wait(60) == 0
    statuses = sum((found for found, _ in results), Counter[str]())
    worst = min(worst for _, worst in results)
    answered = statuses.pop("texts")
    assert set(statuses) <= {"200", "429"}, statuses
    assert worst > LEAST_COSINE
    found = {"clients": CLIENTS, "texts": answered, "answers": dict(statuses), "cosine_min": round(worst, 7)}
    record("soak", "serve", minutes=MINUTES, **found, **flat(memory, seconds))


def wait_for(port: int):
    for _ in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
