"""Serve a bundle over HTTP, with OpenAI's /v1/embeddings.

Also GET /v1/models, /health (200 when ready, 503 while stopping) and /metrics (Prometheus).
SIGTERM stops it gracefully.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import numpy as np
import prometheus_client
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from edgedistill import machine
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.runtime import bundle
from edgedistill.runtime.bundle import Bundle
from edgedistill.serving import openai_schema
from edgedistill.serving.openai_schema import EmbeddingRequest, Refusal, RequestReader, json_response
from edgedistill.serving.request_queue import QueueFull, RequestQueue
from edgedistill.session import Session

LARGEST_BODIES = 8  # held in memory at the same time, or as many bytes in smaller bodies
REFUSED_BYTES = 4_000_000  # of a refused body that are read and thrown away
HEADER_BYTES = 128_000  # of all headers of a request
CLIENT_LEFT = 499  # never sent, only counted
BACKLOG = 4096  # connections that wait for the event loop to accept them
# a worker gets the interpreter back from a busy event loop after this long; by default after 5 ms, for every
# run
SWITCH_S = 0.001


# of the histograms
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Limits:
    """What requests may cost, and who may ask.

    `body_bytes` is of one body, `texts` of a request, `characters` of a text, `queue_s` for all that
    waits, `batch_tokens`, estimated, of a batch. `timeout_s` is from a request's headers to its answer,
    `header_s` for the headers, `stop_s` of a graceful stop. `origins` are those of web pages whose scripts
    may ask, such as https://example.org; "*" is all of them. With an `api_key`, requests must bear it.
    `names` are those of models that a client may ask for, beside the bundle's own.
    """

    body_bytes: int
    texts: int
    characters: int
    queue_s: float
    batch_tokens: int
    timeout_s: float
    header_s: float
    stop_s: float
    origins: tuple[str, ...] = ()
    api_key: str | None = None
    names: tuple[str, ...] = ()


class Metrics:
    """Requests, their latency, the queue, the batches, and the texts and tokens embedded; also memory and CPU
    of the process; in Prometheus' terms."""

    def __init__(self, waiting_texts: Callable[[], int]) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        common: Any = {"namespace": "edgedistill", "registry": self.registry}
        counter: Any = partial(prometheus_client.Counter, **common)
        histogram: Any = partial(prometheus_client.Histogram, **common)
        answered = "Answered embedding requests, by HTTP status (499: the client left)"
        self.requests = counter("requests_total", answered, ["status"])
        whole = "From a request's headers to its answer, of those with status 200"
        self.request_seconds = histogram("request_seconds", whole, buckets=SECONDS)
        self.batch_texts = histogram("batch_texts", "Texts per batch", buckets=TEXTS)
        self.texts = counter("texts_total", "Embedded texts")
        self.tokens = counter("tokens_total", "Embedded tokens, without padding")
        waiting = prometheus_client.Gauge("queue_texts", "Texts waiting for a batch", **common)
        waiting.set_function(waiting_texts)
        prometheus_client.ProcessCollector(registry=self.registry)

    def batch(self, texts: int, tokens: int) -> None:
        """Count one batch."""
        self.batch_texts.observe(texts)
        self.texts.inc(texts)
        self.tokens.inc(tokens)


class EmbeddingServer:
    """The endpoints over one bundle, opened once for each worker: `app`, for an ASGI server."""

    def __init__(self, bundles: Sequence[Bundle], limits: Limits) -> None:
        self.queue = queue = RequestQueue(bundles, limits.queue_s, limits.batch_tokens)
        self.reader = RequestReader(bundles[0], limits.texts, limits.characters, limits.names)
        self.limits = limits
        self.metrics = Metrics(lambda: queue.waiting_texts)
        self.stopping = False
        self.held_bytes = 0  # bodies of all requests without an answer
        queue.count = self.metrics.batch
        routes = [
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.exposition),
        ]
        methods = ["GET", "POST"]
        headers = ["authorization", "content-type"]
        cors = Middleware(
            CORSMiddleware, allow_origins=limits.origins, allow_methods=methods, allow_headers=headers
        )
        checks = [Middleware(Refusing, check=partial(origin_problem, limits.origins)), cors]
        if limits.api_key is not None:  # behind CORS: a browser asks first whether it may, without a key
            checks.append(Middleware(Refusing, check=partial(key_problem, limits.api_key)))
        handlers: Any = {HTTPException: http_error, Exception: our_error, Refusal: refused}
        self.app = Starlette(
            routes=routes, lifespan=self.lifespan, exception_handlers=handlers, middleware=checks
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.queue.start()
        yield
        self.queue.stop(self.limits.stop_s)

    async def health(self, request: Request) -> Response:
        state = "stopping" if self.stopping else "ready"
        return json_response({"status": state}, 503 if self.stopping else 200)

    def model_entry(self, name: str) -> Json:
        """A model by one of its names; `space` says which of its embeddings may be mixed with others'."""
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "edgedistill"}
        return entry | {"space": self.reader.bundle.space}

    async def models(self, request: Request) -> Response:
        entries = [self.model_entry(name) for name in self.reader.names]
        return json_response({"object": "list", "data": entries})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.reader.check_model(name)
        return json_response(self.model_entry(name))

    async def exposition(self, request: Request) -> Response:
        return Response(
            prometheus_client.generate_latest(self.metrics.registry),
            media_type=prometheus_client.CONTENT_TYPE_LATEST,
        )

    async def embeddings(self, request: Request) -> Response:
        """Answer a request, and count it by status."""
        started = time.perf_counter()
        status = 500
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                answer = await self._answer(request)
            status = 200
            self.metrics.request_seconds.observe(time.perf_counter() - started)
            return answer
        except TimeoutError:
            status = 503
            raise Refusal(
                503,
                f"server: no answer within {self.limits.timeout_s:g} s; send fewer texts, or try again",
                code="timeout",
            ) from None
        except Refusal as refusal:
            status = refusal.status
            raise
        except ClientDisconnect:
            status = CLIENT_LEFT
            return Response(status_code=204)  # nobody reads it
        finally:
            self.metrics.requests.labels(str(status)).inc()

    async def _answer(self, request: Request) -> Response:
        try:
            self.queue.check_room()  # a full queue refuses before it reads a body
            async with self._body(request) as body:
                wanted = self.reader.read(body)
                body.clear()
                embeddings, tokens = await self._embed(request, wanted)
                return openai_schema.response(self.reader.bundle, wanted, embeddings, tokens)
        except QueueFull as full:
            raise busy(f"texts of {full.waiting_s:.0f} s are waiting", full.retry_after_s) from None

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytearray]:
        """The body of a request, whose bytes count as held until the block ends. Raises Refusal once it is
        too large."""
        if int(request.headers.get("content-length", 0)) > self.limits.body_bytes:
            raise too_large(self.limits.body_bytes)
        kind = request.headers.get("content-type", "none")
        encoding = request.headers.get("content-encoding", "identity")
        # a web page may send any other without asking first
        if kind.split(";")[0].strip().lower() != "application/json":
            raise Refusal(415, f"Content-Type: {kind[:80]}; send application/json")
        if encoding != "identity":
            raise Refusal(415, f"Content-Encoding: {encoding}; send the body without compression")
        body = bytearray()
        held = 0
        try:
            async for chunk in request.stream():
                held += len(chunk)
                self.held_bytes += len(chunk)
                if held > self.limits.body_bytes:
                    raise too_large(self.limits.body_bytes)
                if self.held_bytes > LARGEST_BODIES * self.limits.body_bytes:
                    raise busy(f"requests of {self.held_bytes} bytes are waiting", 1)
                body += chunk
            yield body
        finally:
            self.held_bytes -= held

    async def _embed(self, request: Request, wanted: EmbeddingRequest) -> tuple[np.ndarray, Counter[str]]:
        """(n, d) embeddings and the tokens of a request's texts, which leave the queue when the client does
        or the time is up."""
        job = self.queue.submit(wanted.input, wanted.role)
        # the body was read: what comes now is the end of the connection
        left = asyncio.ensure_future(request.receive())

        def end(_: object) -> None:
            if not job.done.done():
                job.done.set_exception(ClientDisconnect())

        left.add_done_callback(end)
        try:
            await job.done
        finally:
            left.cancel()
            self.queue.drop(job)
        return job.embeddings, job.tokens


class Refusing:
    """Refuses the requests in which a check finds a problem."""

    def __init__(self, app: ASGIApp, check: Callable[[Scope], Refusal | None]) -> None:
        self.app = app
        self.check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self.check(scope) if scope["type"] == "http" else None
        await (problem.response() if problem else self.app)(scope, receive, send)


def origin_problem(origins: Sequence[str], scope: Scope) -> Refusal | None:
    """A script of a web page that is not allowed."""
    asking = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
    if "*" in origins or set(asking) <= set(origins):
        return None
    return Refusal(
        403, f"Origin: {asking[0][:80]} may not ask; start the server with --cors, or ask without a browser"
    )


def key_problem(key: str, scope: Scope) -> Refusal | None:
    """Another key than the server's; only /health needs none."""
    header = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, sent = header.partition(b" ")
    same = hmac.compare_digest(sent.strip(), key.encode())
    if scope["path"] == "/health" or (same and scheme.lower() == b"bearer"):
        return None
    fact = "another key than the server's" if header else "missing, and this server has a key"
    message = f"Authorization: {fact}; send Authorization: Bearer KEY"
    return Refusal(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection that has had no request in progress for some seconds, or for more bytes than
    headers may have; a refused body has more, so that its client gets to read the answer."""

    headers_s = 10.0
    _unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expire(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._unread_bytes = self._unread_bytes + len(data) if self._waits else 0
        refused = self.cycle is not None and self.cycle.more_body
        if self._unread_bytes > (REFUSED_BYTES if refused else HEADER_BYTES):
            self.transport.close()

    @property
    def _waits(self) -> bool:
        """Whether the headers of a request, the first or the next, are not there yet."""
        return self.cycle is None or self.cycle.response_complete

    def _expire(self, before: object) -> None:
        """Close the connection if it waits for the same request as before; look again later."""
        if self._waits and self.cycle is before:
            self.transport.close()
        if not self.transport.is_closing():
            self.loop.call_later(self.headers_s, self._expire, self.cycle)


async def refused(request: Request, refusal: Refusal) -> Response:
    return refusal.response()


def busy(fact: str, retry_after_s: int) -> Refusal:
    message = f"server: {fact}; try again in {retry_after_s} s"
    headers = {"Retry-After": str(retry_after_s)}
    return Refusal(429, message, code="rate_limit_exceeded", headers=headers)


def too_large(limit_bytes: int) -> Refusal:
    message = f"body: more than {limit_bytes} bytes; send the texts in several requests"
    return Refusal(413, message, code="body_too_large")


async def http_error(request: Request, error: HTTPException) -> Response:
    """Unknown paths and methods, in the shape of OpenAI's errors."""
    paths = "POST /v1/embeddings, GET /v1/models, /health or /metrics"
    fact = "no such path" if error.status_code == 404 else "not with this method"
    message = f"{request.method} {request.url.path[:80]}: {fact}; ask for {paths}"
    return Refusal(error.status_code, message, headers=error.headers).response()


async def our_error(request: Request, error: Exception) -> Response:
    """A fault of ours; its traceback is logged."""
    return Refusal(500, "server: internal error; its log has the details").response()


class GracefulServer(uvicorn.Server):
    """Answers on /health that it is stopping, from the signal on; what was accepted is still answered."""

    def __init__(self, config: uvicorn.Config, embedding_server: EmbeddingServer) -> None:
        super().__init__(config)
        self.embedding_server = embedding_server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.embedding_server.stopping = True
        await super().shutdown(sockets)


def serve(name: str, host: str, port: int, limits: Limits, workers: int, session: Session) -> None:
    """Serve a bundle until SIGTERM or SIGINT. The session logs when it listens, and what the device
    leaves to the processor. Port 0 is any free one.

    A copy of the bundle is opened for each of the workers; the session's threads are of one of them. Raises
    UserError for what is not an encoder's bundle, an address that cannot be listened on, an empty key, and
    as `bundle.load`.
    """
    if limits.api_key is not None:
        limits = replace(limits, api_key=_sendable(limits.api_key))
    threads = session.threads
    if threads is None:
        threads = max(1, machine.default_threads() // workers)
    bundles = [bundle.load(name, threads=threads, device=session.device) for _ in range(workers)]
    first = bundles[0]
    for opened in bundles:
        for encoder in opened.encoders:
            encoder.encode("warm")  # before it listens: what fails here ends the start
    listener = listen(host, port)
    server = EmbeddingServer(bundles, limits)
    sys.setswitchinterval(SWITCH_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises them again once it has stopped; a graceful stop exits with 0
        signal.signal(number, lambda *_: None)
    BoundedProtocol.headers_s = limits.header_s
    config = uvicorn.Config(
        server.app,
        http=BoundedProtocol,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=int(limits.stop_s),
        timeout_keep_alive=int(limits.header_s),
        backlog=BACKLOG,
    )
    address, free = listener.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    about = f"{first.dims[0]} dimensions, up to {first.max_tokens} tokens"
    if first.fallback:
        session.log(f"{name}:{first.precision}: {first.fallback}")
    if not (limits.api_key or ip_address(address).is_loopback):
        session.log("no --api-key: whoever reaches this address may use it")
    session.log(f"{first.manifest['name']}:{first.precision}, {about}, on http://{host}:{free}/v1")
    GracefulServer(config, server).run(sockets=[listener])


def _sendable(key: str) -> str:
    """A key as a header can hold it, without the line end or space around it that files of secrets have.
    Raises UserError for one that no header holds."""
    if not key.strip().isprintable() or not key.strip():
        fact = "holds a control character" if key.strip() else "empty"
        raise UserError(f"--api-key: {fact}; give a key, or leave it out (and unset EDGEDISTILL_API_KEY)")
    return key.strip()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError where the address is not free or not of this machine."""
    allow_many_connections()
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"{host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None


def allow_many_connections() -> None:
    """Raise this process's limit of open files, each connection being one, as far as it may."""
    if sys.platform == "win32":  # has no such limit
        return
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
