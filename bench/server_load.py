"""Texts per second through `edgedistill serve` beside those in-process, and latencies under load and
overload.

python bench/server_load.py nano [--precision w8] [--clients 32] [--texts-per-request 8] [--seconds 10]
[--json]

Each round encodes the texts in-process (one call over all of them, which may sort them by length), and then
sends the same texts through the server, from clients that send their next request as soon as they have an
answer; a client has one connection, and asks for
base64. All run on this machine: what the clients cost is taken from the server. Last, more clients than the
    server's queue has room
for send as much as they can, and pause for a second after a refusal.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import edgedistill
from edgedistill import machine
from edgedistill.evaluation import scoring

PAUSE_S = 1.0  # of a refused client: the least Retry-After
WARM_S = 0.5  # of each phase, not counted
STUCK_S = 60.0  # after a phase's end; answers that come later are not waited for


@dataclass
class Load:
    """What the clients of one phase send and have received. Latencies in seconds, by status, of all answers
    after `begin`."""

    requests: Iterator[bytes]
    texts_per_request: int
    begin: float
    end: float
    seconds: dict[int, list[float]] = field(default_factory=dict)
    accepted_in_time: int = 0
    open_clients: int = 0
    lost: int = 0  # connections that the server closed

    def record(self, status: int, started: float, now: float) -> None:
        if now >= self.begin:
            self.seconds.setdefault(status, []).append(now - started)
            self.accepted_in_time += status == 200 and now < self.end

    def summary(self) -> dict[str, Any]:
        accepted, refused = self.seconds.get(200, []), self.seconds.get(429, [])
        count = sum(map(len, self.seconds.values()))
        return {
            "texts_s": round(self.accepted_in_time * self.texts_per_request / (self.end - self.begin), 1),
            "texts": len(accepted) * self.texts_per_request,
            "status": dict(Counter({status: len(samples) for status, samples in self.seconds.items()})),
            "lost_connections": self.lost,
            "refused_share": round(len(refused) / count, 4) if count else None,
            **percentiles("accepted", accepted),
            **percentiles("refused", refused),
        }


class Client(asyncio.Protocol):
    """One connection, one request at a time: counts an answer's bytes, does not parse its JSON."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.received = bytearray()
        self.missing = 0  # bytes of the answer to come; 0 while its headers are incomplete
        self.status = 0
        load.open_clients += 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's is no asyncio.Transport
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self.load.open_clients -= 1
        self.load.lost += time.perf_counter() < self.load.end

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
        else:
            self.received += data
            head = self.received.find(b"\r\n\r\n")
            if head < 0:
                return
            length = re.search(rb"content-length: (\d+)", self.received[:head], re.IGNORECASE)
            assert length is not None
            self.status = int(self.received[9:12])
            self.missing = head + 4 + int(length[1]) - len(self.received)
        if self.missing == 0:
            self._answered()

    def _answered(self) -> None:
        now = time.perf_counter()
        self.load.record(self.status, self.started, now)
        self.received.clear()
        if now >= self.load.end:
            self.transport.close()
        elif self.status == 429:
            asyncio.get_running_loop().call_later(PAUSE_S, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if not self.transport.is_closing():
            self.started = time.perf_counter()
            self.transport.write(next(self.load.requests))


def request(texts: list[str], model: str) -> bytes:
    """One POST to /v1/embeddings that asks for base64, as the openai client does."""
    body = json.dumps(
        {"input": texts, "model": model, "encoding_format": "base64"}, ensure_ascii=False
    ).encode()
    return (
        b"POST /v1/embeddings HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "
        b"%d\r\n\r\n%s"
        % (
            len(body),
            body,
        )
    )


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files where it is too low for so many clients."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count + 100 > most:
        sys.exit(
            f"{count} clients: this system allows {most} open files; take fewer, or raise the limit (ulimit "
            "-n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def run_clients(address: tuple[str, int], clients: int, load: Load) -> dict[str, Any]:
    """Connect the clients, let them work until the load's end, and wait for the last answers."""
    loop = asyncio.get_running_loop()
    for _ in range(clients):
        await loop.create_connection(lambda: Client(load), *address)
    while load.open_clients and time.perf_counter() < load.end + STUCK_S:
        await asyncio.sleep(0.05)
    return load.summary()


def measure_load(
    address: tuple[str, int], requests: list[bytes], clients: int, asked: argparse.Namespace
) -> dict[str, Any]:
    begin = time.perf_counter() + WARM_S + clients / 2000  # connecting takes time
    load = Load(itertools.cycle(requests), asked.texts_per_request, begin, begin + asked.seconds)
    with contextlib.suppress(ImportError):  # the server has it; a client that costs less leaves it more
        import uvloop

        return uvloop.run(run_clients(address, clients, load))
    return asyncio.run(run_clients(address, clients, load))


@contextlib.contextmanager
def running_server(asked: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A server process of its own and its address; stopped by SIGTERM, upon which it must exit with 0."""
    command = [
        sys.executable,
        "-m",
        "edgedistill",
        "serve",
        asked.bundle + (f":{asked.precision}" if asked.precision else ""),
        "--port",
        "0",
        "--threads",
        str(asked.threads),
        *asked.server_arguments,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://([\d.]+):(\d+)", line)
        if address is None:
            sys.exit(f"the server did not start: {line or 'see above'}")
        yield process, (address[1], int(address[2]))
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            sys.exit(f"the server exited with {process.returncode}")


def in_process(bundle: edgedistill.Bundle, texts: list[str], seconds: float) -> tuple[float, float]:
    """Texts per second of `encode` over all the texts, repeated for so many seconds; and processor ms per
    text."""
    bundle.encode(texts[:200])
    started, spent, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        bundle.encode(texts)
        count += len(texts)
    return count / (time.perf_counter() - started), (time.process_time() - spent) * 1000 / count


def compare_one(address: tuple[str, int], texts: list[str], bundle: edgedistill.Bundle) -> None:
    """The server must give the embeddings of the bundle, within what batches may change (int8 with a scale
    per batch: much)."""
    import urllib.request

    body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
    url = f"http://{address[0]}:{address[1]}/v1/embeddings"
    post = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(post) as response:
        rows = [
            np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in json.load(response)["data"]
        ]
    cosine = float(np.min(np.sum(np.array(rows) * bundle.encode(texts), axis=1)))
    if cosine < 0.9:
        sys.exit(f"the server's embeddings differ from the bundle's: cosine {cosine:.4f}")


def resident_bytes(process: subprocess.Popen[str]) -> int | None:
    try:
        return (
            int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())[0]) * 1024
        )
    except OSError:
        return None


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """What a process has used of the processors; nan where there is no /proc."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(name: str, seconds: list[float]) -> dict[str, float | None]:
    return {
        f"{name}_p{p}_ms": round(float(np.percentile(seconds, p)) * 1000, 1) if seconds else None
        for p in (50, 99)
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--precision")
    parser.add_argument("--suite", default="mini", help="whose texts are sent")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--texts-per-request", type=int, default=8)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--overload-clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10, help="of each phase in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=machine.default_threads(), help="of the server and in-process"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on the last line")
    parser.add_argument(
        "--server-arguments", type=shlex.split, default=[], help="such as --server-arguments='--workers 2'"
    )
    return parser.parse_args(arguments)


def main() -> None:
    asked = parse()
    allow_connections(max(asked.clients, asked.overload_clients))
    texts: list[str] = scoring.suite(asked.suite, asked.data).sample(asked.texts)
    bundle = edgedistill.load(asked.bundle, asked.precision, asked.threads)
    each = asked.texts_per_request
    requests = [
        request(texts[at : at + each], bundle.manifest["name"])
        for at in range(0, len(texts) - each + 1, each)
    ]
    rounds = []
    with running_server(asked) as (process, address):
        compare_one(address, texts[:each], bundle)
        for _ in range(asked.rounds):
            inside, inside_ms = in_process(bundle, texts, asked.seconds)
            before = processor_seconds(process), time.process_time()
            through = measure_load(address, requests, asked.clients, asked)
            spent = processor_seconds(process) - before[0], time.process_time() - before[1]
            # about: what came before `begin` is not counted
            all_texts = through["texts"] + through["texts_s"] * WARM_S
            processor = {
                "in_process": inside_ms,
                "server": spent[0] * 1000 / all_texts,
                "clients": spent[1] * 1000 / all_texts,
            }
            rounds.append(
                {
                    "in_process_texts_s": round(inside, 1),
                    **through,
                    "ratio": round(through["texts_s"] / inside, 3),
                }
            )
            rounds[-1]["processor_ms_per_text"] = {name: round(ms, 3) for name, ms in processor.items()}
            print(
                f"in-process {inside:,.0f} texts/s, server {through['texts_s']:,.0f} (× "
                f"{rounds[-1]['ratio']}), ",
                end="",
            )
            print(
                f"p50 {through['accepted_p50_ms']} ms, p99 {through['accepted_p99_ms']} ms; processor ms per "
                "text: ",
                end="",
            )
            print(", ".join(f"{name} {ms:.2f}" for name, ms in processor.items()), flush=True)
        peak = resident_bytes(process)
        overload = measure_load(address, requests, asked.overload_clients, asked)
        overload["peak_rss_bytes"] = resident_bytes(process)
    accepted = f"accepted: p50 {overload['accepted_p50_ms']} ms, p99 {overload['accepted_p99_ms']} ms"
    print(
        f"overload: {asked.overload_clients} clients, {overload['texts_s']:,.0f} texts/s, "
        f"{overload['refused_share']:.1%} refused"
    )
    refused = f"refused: p50 {overload['refused_p50_ms']} ms, p99 {overload['refused_p99_ms']} ms"
    print(f"{accepted}; {refused}; peak memory {(overload['peak_rss_bytes'] or 0) / 1e6:.0f} MB")
    if asked.json:
        result = {
            "bundle": f"{bundle.manifest['name']}:{bundle.precision}",
            "digest": bundle.manifest.get("digest"),
            "request": {
                "texts": each,
                "encoding_format": "base64",
                "texts_of": asked.suite,
                "bytes_mean": round(float(np.mean([*map(len, requests)]))),
            },
            "clients": asked.clients,
            "overload_clients": asked.overload_clients,
            "server_arguments": asked.server_arguments,
            "threads": asked.threads,
            "ratio": round(float(np.median([found["ratio"] for found in rounds])), 3),
            "rounds": rounds,
            "peak_rss_bytes": peak,
            "overload": overload,
            "machine": machine.here(),
            "versions": machine.versions(),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
