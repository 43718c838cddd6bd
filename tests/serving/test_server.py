"""`edgedistill serve`: a server process with a tiny bundle, asked by the real openai client, by raw sockets,
and too much."""

from __future__ import annotations

import asyncio
import json
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedistill
from edgedistill import files
from edgedistill.export import bundle_writer, pair_bundle
from edgedistill.export.model_source import Source
from edgedistill.serving import request_queue, server
from edgedistill.session import Session
from tests.conftest import sentences
from tests.export.test_export import make_run
from tests.runtime.conftest import rewrite

INSTALL = "pip install '.[dev,server]'"
for needed in ("starlette", "uvicorn", "orjson"):
    pytest.importorskip(needed, reason=INSTALL)
openai = pytest.importorskip("openai", reason=INSTALL)
exposition = pytest.importorskip("prometheus_client.parser", reason=INSTALL)

pytestmark = [pytest.mark.enable_socket, pytest.mark.allow_hosts(["127.0.0.1"])]

COMMAND = [sys.executable, "-m", "edgedistill", "serve"]
TEXTS = sentences(64, seed=3)
ROLES = {"query_prompt": "the dog ", "document_prompt": "a child "}


@dataclass(frozen=True)
class Served:
    """A running server process, where it listens, and the bundle it serves."""

    process: subprocess.Popen[str]
    port: int
    bundle: edgedistill.Bundle

    @property
    def client(self) -> Any:
        return openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{self.port}/v1", max_retries=0)

    def ask(
        self, body: bytes | dict[str, Any], *headers: str, path: str = "/v1/embeddings", method: str = "POST"
    ) -> tuple[int, dict, bytes]:
        """(status, headers, body) of one request over a connection of its own."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = (
            []
            if any(each.startswith("Content-Type:") for each in headers)
            else ["Content-Type: application/json"]
        )
        head = [
            f"{method} {path} HTTP/1.1",
            "Host: x",
            "Connection: close",
            f"Content-Length: {len(data)}",
            *kind,
            *headers,
        ]
        with self.connect() as connection:
            connection.sendall("\r\n".join([*head, "", ""]).encode() + data)
            return read_answer(connection)

    def get(self, path: str) -> tuple[int, bytes]:
        status, _, body = self.ask(b"", path=path, method="GET")
        return status, body

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def metric(self, name: str, **labels: str) -> float:
        families = exposition.text_string_to_metric_families(self.get("/metrics")[1].decode())
        return sum(
            s.value
            for f in families
            for s in f.samples
            if s.name == name and labels.items() <= s.labels.items()
        )


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := connection.recv(65536))
        assert more, f"closed after {data!r}"
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    while len(body) < int(headers["content-length"]):
        body += (more := connection.recv(65536))
        assert more, "closed in the body"
    return int(lines[0].split()[1]), headers, body


def error_of(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """The status and message of an error, after checking its shape."""
    error = json.loads(answer[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer[0], error["message"]


@contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[Served]:
    command = [
        *COMMAND,
        f"{folder}:fp32",
        "--port",
        "0",
        "--threads",
        "1",
        *arguments,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        port = re.search(r"http://127\.0\.0\.1:(\d+)/v1", process.stdout.readline())
        assert port, process.stderr.read()
        served = Served(process, int(port[1]), edgedistill.load(folder, "fp32", threads=1))
        for _ in range(100):
            if served.get("/health")[0] == 200:
                break
            time.sleep(0.05)
        yield served
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    bundle_writer.export(make_run(root / "tiny", **ROLES), ["fp32"], root / "x", lambda line: None)
    rewrite(root / "x", dims=[24, 8])
    return root / "x"


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serve(
        folder, "--model-name", "other:v1", "--max-texts", "100", "--max-chars", "1000", "--max-body-mb", "1"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def slow(folder: Path) -> Iterator[Served]:
    """A server that takes a while: one text a batch, thousands of texts a request."""
    with serve(folder, *SLOWLY) as running:
        yield running


SLOWLY = ["--batch-tokens", "1", "--queue-seconds", "1", "--max-texts", "100000", "--timeout", "30"]
MANY = TEXTS * 80  # a few seconds for the slow server


def test_the_openai_client_gets_the_bundles_embeddings(served: Served):
    expected = served.bundle.encode(TEXTS)
    by_default = served.client.embeddings.create(input=TEXTS, model="tiny")  # asks for base64
    numbers = served.client.embeddings.create(input=TEXTS, model="tiny", encoding_format="float", user="me")
    for answer in (by_default, numbers):
        found = np.array([each.embedding for each in answer.data], np.float32)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert [each.index for each in answer.data] == list(range(len(TEXTS)))
        assert (
            answer.usage.total_tokens
            == answer.usage.prompt_tokens
            == sum(map(len, served.bundle.tokenize(TEXTS)))
        )
    assert [each.embedding for each in by_default.data] == [
        np.float32(each.embedding).tolist() for each in numbers.data
    ]
    one = served.client.embeddings.create(input=TEXTS[5], model="tiny:fp32")
    np.testing.assert_allclose(one.data[0].embedding, expected[5], atol=1e-6)


def test_order_is_kept_under_concurrent_clients(served: Served):
    expected = served.bundle.encode(TEXTS)
    before = served.metric("edgedistill_batch_texts_count")
    client = served.client

    def ask(number: int):
        mine = [(number * 7 + at * 5) % len(TEXTS) for at in range(1 + number % 4)]
        for _ in range(4):
            answer = client.embeddings.create(input=[TEXTS[at] for at in mine], model="tiny")
            np.testing.assert_allclose([each.embedding for each in answer.data], expected[mine], atol=1e-5)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(ask, range(32)))
    batches = served.metric("edgedistill_batch_texts_count") - before
    assert 0 < batches < 32 * 4, "requests share batches"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"input": "\xff"}', 400, "body: not JSON ("),
        (b'{"input": "\\ud800"}', 400, "input[0]: "),
        (b"[" * 100_000, 400, "body: not JSON ("),
        (b"[1]", 400, "body: "),
        (b'{"input": "a", "input" : "b"}', 400, "body: not JSON (a key twice"),
        ({"model": "tiny"}, 400, "input: Field required"),
        ({"input": []}, 400, "input: "),
        ({"input": None}, 400, "input: "),
        ({"input": ""}, 400, "input[0]: "),
        ({"input": ["a", 7]}, 400, "input[1]: token ids of another model's tokenizer would give wrong"),
        ({"input": [[1, 2], [3]]}, 400, "input[0]: token ids "),
        ({"input": ["a", None, "b"]}, 400, "input[1]: "),
        ({"input": ["a"] * 101}, 400, "input: List should have at most 100 items"),
        ({"input": ["a", "b" * 1001]}, 400, "input[1]: String should have at most 1000 characters"),
        ({"input": "a", "dimensions": 5}, 400, "dimensions: 5: tiny was trained for 24, 8 dimensions; "),
        ({"input": "a", "dimensions": True}, 400, "dimensions: "),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format: Input should be 'float' or"),
        ({"input": "a", "output_dtype": ["int8"]}, 400, "output_dtype: Input should be 'float', "),
        ({"input": "a", "prompt": "query: "}, 400, "prompt: not known here; leave it out (input, model, "),
        ({"input": "a", "input_type": "clustering"}, 400, "input_type: Input should be 'query', "),
        ({"input": "a", "model": "other"}, 404, "model: no 'other' here; this server has tiny"),
    ],
)
def test_a_refused_request(served: Served, body: bytes | dict[str, Any], status: int, message: str):
    found = error_of(served.ask(body))
    assert found[0] == status and found[1].startswith(message), found


@pytest.mark.parametrize(
    ("asked", "role"),
    [
        ({"input_type": "query"}, "query"),
        ({"input_type": "search_document"}, "document"),
        ({"input_type": "passage"}, "document"),
        ({"input_type": None}, "text"),
    ],
)
def test_queries_and_documents_get_their_prompts(served: Served, asked: dict[str, Any], role: str):
    expected = served.bundle.encode(TEXTS[:9], role=role)
    assert role == "text" or np.abs(expected - served.bundle.encode(TEXTS[:9])).max() > 1e-3
    answer = served.client.embeddings.create(input=TEXTS[:9], model="tiny", extra_body=asked)
    found = np.array([each.embedding for each in answer.data], np.float32)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert answer.usage.total_tokens == sum(map(len, served.bundle.tokenize(TEXTS[:9], role)))


@pytest.mark.parametrize("mean", [False, True])
def test_a_pair_answers_by_the_encoder_of_the_role(folder: Path, tmp_path, mean: bool):
    source, out = Source(str(folder)), tmp_path / "pair"
    pair_bundle.export(source, source, ["fp32"], out, lambda line: None, mean)
    shorter = {**files.read_json(tmp_path / "pair" / "query" / "manifest.json"), "max_tokens": 6}
    del shorter["digest"]
    bundle_writer.seal(tmp_path / "pair" / "query", shorter)
    manifest = files.read_json(tmp_path / "pair" / "manifest.json")
    del manifest["digest"]
    bundle_writer.seal(tmp_path / "pair", manifest)
    with serve(tmp_path / "pair") as running:
        status, message = error_of(running.ask({"input": "a"}))
        assert status == 400 and message.startswith("input_type: pair: a pair of encoders")
        for role in ("query", "document"):
            answer = running.client.embeddings.create(
                input=TEXTS[:9], model="pair", extra_body={"input_type": role}
            )
            found = np.array([each.embedding for each in answer.data], np.float32)
            np.testing.assert_allclose(found, running.bundle.encode(TEXTS[:9], role=role), atol=1e-6)


def test_embeddings_in_fewer_bytes_as_other_services_have_them(served: Served):
    from sentence_transformers.util.quantization import quantize_embeddings

    rows = served.bundle.encode(TEXTS)
    centred = served.bundle.calibration.centred(rows)
    expected = {
        "float": rows,
        "int8": served.bundle.encode(TEXTS, precision="int8"),
        **{dtype: quantize_embeddings(centred, dtype) for dtype in ("ubinary", "binary")},
    }
    for dtype, values in expected.items():
        for dim in (24, 8):
            asked = {"input": TEXTS, "output_dtype": dtype, "dimensions": dim}
            found = [each["embedding"] for each in json.loads(served.ask(asked)[2])["data"]]
            if dim == 24:
                np.testing.assert_allclose(np.array(found), values, atol=1 if dtype == "int8" else 1e-6)
            assert len(found[0]) == (dim // 8 if "binary" in dtype else dim)
    with pytest.raises(openai.BadRequestError, match="base64 is of float alone, and output_dtype is int8"):
        served.client.embeddings.create(input="a", model="tiny", extra_body={"output_dtype": "int8"})


def test_tokens_that_are_not_read_are_counted(served: Served):
    text, most = "a cat sleeps " * 70, served.bundle.max_tokens
    texts = [text, '"input": \U0001f600 a cat']
    usage = served.client.embeddings.create(input=texts, model="tiny").usage.model_dump()
    lost = served.bundle.token_counts([text])[0] - most
    unknown = [int((row == served.bundle.unknown_id).sum()) for row in served.bundle.tokenize(texts)]
    assert (usage["tokens_cut"], usage["tokens_unknown"]) == (lost, sum(unknown)) and lost > 0 < sum(unknown)


def test_other_paths_and_encodings_are_refused_in_openais_shape(served: Served):
    assert error_of(served.ask(b"", path="/v1/nothing"))[0] == 404
    status, headers, body = served.ask(b"", method="GET")
    assert error_of((status, headers, body))[0] == 405 and headers["allow"] == "POST"
    assert error_of(served.ask(b"x", "Content-Encoding: gzip")) == (
        415,
        "Content-Encoding: gzip; send the body without compression",
    )


def test_a_huge_body_is_refused_before_it_is_held(served: Served):
    """With Content-Length at once, chunked after 1 MB of what would be 1 GB; and the memory stays where it
    was."""
    served.ask({"input": "warm"})
    with served.connect() as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
            b"1000000000\r\n\r\n"
        )
        assert error_of(read_answer(connection)) == (
            413,
            "body: more than 1000000 bytes; send the texts in several requests",
        )
    before = served.metric("process_resident_memory_bytes")
    sent = 0
    with served.connect() as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: "
            b"application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"%x\r\n%s\r\n" % (2**18, b"x" * 2**18)
        connection.settimeout(0.01)
        for _ in range(4000):
            try:
                connection.sendall(chunk)
            except (TimeoutError, ConnectionError):  # no longer read
                break
            sent += 2**18
            if connection in select.select([connection], [], [], 0)[0]:
                break
        connection.settimeout(30)
        assert error_of(read_answer(connection))[0] == 413
    assert sent < 20_000_000  # what is thrown away, and what the sockets hold
    assert served.metric("process_resident_memory_bytes") - before < 20_000_000
    assert served.metric("edgedistill_requests_total", status="413") == 2
    assert served.ask({"input": "still here"})[0] == 200


def test_a_model_is_found_by_its_name(served: Served):
    for name in ("tiny", "tiny:fp32", "other:v1"):
        assert served.client.models.retrieve(name).id == name
        answer = served.client.embeddings.create(input="a", model=name)
        assert (answer.model, answer.space) == (name, served.bundle.space)
    assert [model.id for model in served.client.models.list()] == ["tiny", "other:v1"]
    status, message = error_of(served.ask(b"", path="/v1/models/other", method="GET"))
    assert (status, message) == (404, "model: no 'other' here; this server has tiny, other:v1")


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "",
        "application/jsonx",
    ],
)
def test_a_body_that_any_web_page_may_send_is_refused(served: Served, kind: str):
    status, message = error_of(served.ask({"input": "a"}, f"Content-Type: {kind}"))
    assert (status, message) == (415, f"Content-Type: {kind}; send application/json")
    assert served.ask({"input": "a"}, "Content-Type: Application/JSON; charset=utf-8")[0] == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models", "/metrics"])
def test_a_web_page_is_refused(served: Served, path: str):
    for origin in ("https://example.org", "null", "http://127.0.0.1:8000"):
        status, message = error_of(served.ask({"input": "a"}, f"Origin: {origin}", path=path))
        assert status == 403 and message.startswith(
            f"Origin: {origin} may not ask; start the server with --cors"
        )


def test_headers_without_end_close_the_connection(served: Served):
    with served.connect() as connection:
        connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall((b"X-Y: %s\r\n" % (b"z" * 1000)) * 10_000)


def test_an_allowed_page_and_connections_that_wait(folder: Path):
    """An origin that is allowed gets CORS's headers; connections without a request, or with half of one, are
    closed in time."""
    with (
        serve(folder, "--cors", "https://example.org", "--header-timeout", "1") as running,
        ExitStack() as connections,
    ):
        opened = [connections.enter_context(running.connect()) for _ in range(3)]
        opened[1].sendall(b"POST /v1/emb")
        opened[2].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(opened[2])[0] == 200
        opened[2].sendall(b"GET /health HTTP/1.1\r\nHo")  # and no more
        for connection in opened:
            assert connection.recv(1) == b""  # closed; the socket's own time-out is 30 s
        status, headers, _ = running.ask({"input": "a"}, "Origin: https://example.org")
        assert (status, headers["access-control-allow-origin"]) == (200, "https://example.org")
        asked = [
            "Origin: https://example.org",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: content-type",
        ]
        assert running.ask(b"", *asked, method="OPTIONS")[0] == 200
        assert running.ask({"input": "a"}, "Origin: https://example.com")[0] == 403
        assert json.loads(running.get("/v1/models")[1])["data"][0]["id"] == "tiny"


def test_a_key(folder: Path, monkeypatch):
    """Only /health is answered without it; an allowed page's browser asks without it whether it may."""
    monkeypatch.setenv("EDGEDISTILL_API_KEY", "sesame é\r\n")  # as files of secrets end
    bearer = "Authorization: bearer sesame é"
    page = "Origin: https://example.org"
    with serve(folder, "--cors", "https://example.org") as running:
        assert running.get("/health")[0] == 200
        for path in ("/v1/embeddings", "/v1/models", "/metrics"):
            answer = running.ask({"input": "a"}, path=path)
            assert answer[1]["www-authenticate"] == "Bearer" and error_of(answer) == (
                401,
                "Authorization: missing, and this server has a key; send Authorization: Bearer KEY",
            )
        for other in ("Bearer sesam", "sesame é", "Basic sesame é", "Bearer sesame éé"):
            status, message = error_of(running.ask({"input": "a"}, f"Authorization: {other}", page))
            assert status == 401 and message.startswith("Authorization: another key than the server's; ")
        status, headers, _ = running.ask({"input": "a"}, bearer, page)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://example.org")
        asked = [page, "Access-Control-Request-Method: POST"]
        asked.append("Access-Control-Request-Headers: authorization, content-type")
        assert running.ask(b"", *asked, method="OPTIONS")[0] == 200


def test_all_bodies_together_are_bounded(served: Served):
    """Eight times the largest body is held at most: of ten unfinished bodies of 0.9 MB the last are
    refused."""
    head, part = (
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        b"950000\r\n\r\n",
        b"x" * 900_000,
    )
    with ExitStack() as connections:
        opened = [connections.enter_context(served.connect()) for _ in range(10)]
        for connection in opened:
            connection.sendall(head + part)
        answered = select.select(opened, [], [], 10)[0]
        assert answered
        assert error_of(read_answer(answered[0]))[0] == 429
    wait_until(lambda: served.ask({"input": "again"})[0] == 200)


def test_a_full_queue_refuses_at_once(slow: Served):
    answers = [slow.ask({"input": "before"})]  # of which the rate is known

    def full() -> bool:
        answers.append(slow.ask({"input": "one more"}))
        return answers[-1][0] != 200

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(slow.ask, {"input": MANY * 3})
        wait_until(full)
        status, message = error_of(answers[-1])
        assert status == 429 and 1 <= int(answers[-1][1]["retry-after"]) <= 60, message
        assert first.result()[0] == 200
    assert slow.metric("edgedistill_queue_texts") == 0
    assert slow.ask({"input": "one more"})[0] == 200


def test_short_requests_have_half_of_each_batch(folder: Path):
    """And long ones the rest, so that neither waits for all of the other."""
    queue = request_queue.RequestQueue([edgedistill.load(folder, "fp32", threads=1)], 60, 64)

    async def taken() -> list[list[bool]]:
        queue._loop = asyncio.get_running_loop()
        queue.submit(["x" * 28] * 40)
        for _ in range(12):
            queue.submit(["y" * 28])
        return [[text.job.short for text in queue._take()] for _ in range(3)]

    first, second, third = asyncio.run(taken())
    assert first == second == [True] * 4 + [False] * 4 and third[:4] == [True] * 4
    queue.rate = 1.0
    with pytest.raises(request_queue.QueueFull):
        queue.check_room(1_000)


def test_a_short_request_overtakes_a_long_one(slow: Served):
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(slow.ask, {"input": TEXTS * 7})
        wait_until(lambda: slow.metric("edgedistill_queue_texts") > 0)
        assert slow.ask({"input": "short"})[0] == 200
        assert not long.done()
        rows = [each["embedding"] for each in json.loads(long.result()[2])["data"]]
    np.testing.assert_allclose(
        rows, slow.bundle.encode(TEXTS * 7), atol=1e-5
    )  # taken in parts, put together in order


def test_the_texts_of_a_client_that_left_are_dropped(slow: Served):
    embedded = slow.metric("edgedistill_texts_total")
    data = json.dumps({"input": MANY}).encode()
    with slow.connect() as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
            b"%d\r\n\r\n%s" % (len(data), data)
        )
        wait_until(lambda: slow.metric("edgedistill_queue_texts") > 0)
    wait_until(lambda: slow.metric("edgedistill_queue_texts") == 0)
    assert slow.metric("edgedistill_texts_total") - embedded < len(MANY)
    wait_until(lambda: slow.metric("edgedistill_requests_total", status="499") == 1)


def test_metrics_count_what_happened(served: Served):
    names = [
        "edgedistill_texts_total",
        "edgedistill_tokens_total",
        "edgedistill_batch_texts_sum",
        "edgedistill_request_seconds_count",
    ]
    before = [served.metric(name) for name in names] + [
        served.metric("edgedistill_requests_total", status="200")
    ]
    assert served.ask({"input": TEXTS[:5]})[0] == 200
    after = [served.metric(name) for name in names] + [
        served.metric("edgedistill_requests_total", status="200")
    ]
    tokens = sum(map(len, served.bundle.tokenize(TEXTS[:5])))
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [5, tokens, 5, 1, 1]
    refused = served.metric("edgedistill_requests_total", status="400")
    served.ask(b"{")
    assert served.metric("edgedistill_requests_total", status="400") == refused + 1


def test_a_request_that_takes_too_long_is_given_up(folder: Path):
    with serve(folder, *SLOWLY[:-1], "1") as running:
        assert error_of(running.ask({"input": MANY * 8})) == (
            503,
            "server: no answer within 1 s; send fewer texts, or try again",
        )
        wait_until(lambda: running.metric("edgedistill_queue_texts") == 0)
        assert running.ask({"input": "next"})[0] == 200


def test_sigterm_finishes_what_was_accepted(folder: Path):
    with serve(folder, *SLOWLY, "--queue-seconds=30") as running, ThreadPoolExecutor(4) as threads:
        asked = [
            threads.submit(running.ask, {"input": TEXTS * 4, "encoding_format": "base64"}) for _ in range(3)
        ]
        wait_until(lambda: running.metric("edgedistill_queue_texts") > 512)
        running.process.send_signal(signal.SIGTERM)
        assert [each.result()[0] for each in asked] == [200] * 3
        assert all(len(json.loads(each.result()[2])["data"]) == len(TEXTS) * 4 for each in asked)
        assert running.process.wait(20) == 0
        assert running.process.stderr is not None and "Traceback" not in running.process.stderr.read()
        with pytest.raises(ConnectionRefusedError):
            running.connect()


def test_health_is_503_while_stopping(folder: Path):
    with serve(folder, "--timeout", "2") as running, running.connect() as half, running.connect() as asking:
        half.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
            b'99\r\n\r\n{"input": '
        )
        asking.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(asking)[0] == 200
        running.process.send_signal(signal.SIGTERM)
        assert error_of(read_answer(half))[0] == 503, "half a body is waited for as long as for an answer"
        assert running.process.wait(20) == 0


def test_a_warm_up_that_fails_ends_the_start(folder: Path, monkeypatch):
    def out_of_memory(*_: Any, **__: Any):
        raise MemoryError("warm")

    monkeypatch.setattr(edgedistill.Bundle, "encode", out_of_memory)
    limits = server.Limits(100, 10, 10, 10, 100, 1, 1, 1)
    with pytest.raises(MemoryError, match="warm"):
        server.serve(str(folder), "127.0.0.1", 0, limits, 1, Session(threads=1))


def test_a_failed_batch_fails_its_requests_and_no_others(monkeypatch, folder: Path):
    bundle = edgedistill.load(folder, "fp32", threads=1)
    queue = request_queue.RequestQueue([bundle], 10, 100)

    def out_of_memory(*_: Any, **__: Any):
        raise MemoryError("a batch")

    async def ask() -> np.ndarray:
        queue.start()
        with monkeypatch.context() as patched:
            patched.setattr(bundle, "encode_ids", out_of_memory)
            with pytest.raises(MemoryError, match="a batch"):
                await queue.submit(["first"]).done
        job = queue.submit(["second", "third"])
        await job.done
        return job.embeddings

    np.testing.assert_allclose(asyncio.run(ask()), bundle.encode(["second", "third"]), atol=1e-6)
    queue.stop(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no bundle 'nowhere'; choose one: (micro, multi, nano, small)"),
        (["BUNDLE:int8"], "int8"),
        (["BUNDLE", "--host", "192.0.2.1"], "192.0.2.1:8000: "),
        (["BUNDLE", "--port", "70000"], "edgedistill serve: Invalid value for '--port': "),
        (["BUNDLE", "--device", "cdua"], "no device 'cdua'; did you mean 'cuda'?"),
        (["BUNDLE", "--threads", "0"], "--threads 0: not a whole number from 1"),
        (["BUNDLE", "--api-key", " "], "--api-key: empty; give a key, or leave it out"),
        (["BUNDLE", "--api-key", "a\nb"], "--api-key: holds a control character"),
        (["LABELS"], ": a classifier (label 0, label 1, "),
    ],
)
def test_a_start_that_is_refused(folder: Path, tmp_path, arguments: list[str], message: str):
    if arguments == ["LABELS"]:
        labels = Path(shutil.copytree(folder, tmp_path / "labels"))
        precisions = files.read_json(labels / "manifest.json")["precisions"]
        precisions["fp32"]["parity"]["threshold"] = 0.001  # a classifier's is a difference of probabilities
        rewrite(labels, labels=[f"label {number}" for number in range(24)], precisions=precisions)
    name = arguments[0].replace("BUNDLE", str(folder)).replace("LABELS", str(tmp_path / "labels"))
    command = [*COMMAND, name, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def wait_until(happened: Callable[[], bool], timeout_s: float = 20):
    end = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)
