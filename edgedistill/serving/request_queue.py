"""The texts of all requests wait in one queue; worker threads take what waits, up to a bound, and embed it as
one batch.

No worker waits for a batch to fill: an idle server embeds a text at once, and batches grow with the load. The
texts of a long request are taken in parts, and what is left of it goes to the end of the queue, so that a
short request waits for one part of it and not for all.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from edgedistill.runtime.bundle import Bundle

CHARACTERS_PER_TOKEN = 4  # of English; only estimated, for a text is tokenized after it was taken
CHARACTERS_TO_TOKENIZE = 64  # tokenizing this many takes about as long as embedding one token
# with padding, per run of the graph: texts of a small batch differ in length, and in larger runs padding
# costs more
RUN_TOKENS = 128
RETRY_AFTER_S = (1, 60)  # at least and at most; clients ignore longer ones


@dataclass(eq=False)
class QueueFull(Exception):
    """The queue has no room for a request; it may have after `retry_after_s`."""

    waiting_texts: int
    retry_after_s: int


@dataclass(eq=False, slots=True)
class Job:
    """The texts of one request, and their embeddings as they come.

    embeddings: (n, d) float32, complete when `done` is. tokens: of all texts, without padding. taken,
        embedded: counts of texts. role: what the texts are, for the bundle's prompts.
    """

    texts: list[str]
    embeddings: np.ndarray
    done: asyncio.Future[None]
    tokens: int = 0
    taken: int = 0
    embedded: int = 0
    role: str = "text"


class Part(NamedTuple):
    """The texts start to stop of a job, which a worker has taken."""

    job: Job
    start: int
    stop: int

    @property
    def texts(self) -> list[str]:
        return self.job.texts[self.start : self.stop]


@dataclass(eq=False)
class RequestQueue:
    """Embeds the texts of concurrent requests in common batches. Used from one event loop.

    bundles: one per worker thread. limit_texts: texts that may wait. batch_tokens: estimated tokens per
        batch; at least one text is taken.
    count: called with the texts and tokens of every batch, from the worker's thread.
    """

    bundles: Sequence[Bundle]
    limit_texts: int
    batch_tokens: int
    count: Callable[[int, int], None] = lambda texts, tokens: None
    waiting_texts: int = 0
    rate_texts_s: float = 0.0  # of all workers together, measured while they work
    _jobs: deque[Job] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopping: bool = False
    _warm: int = 0  # workers that have embedded their first text

    @property
    def ready(self) -> bool:
        return self._warm == len(self.bundles) and not self._stopping

    def start(self) -> None:
        """Start the workers, which first embed a text each. Called in the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._work, args=(bundle,), daemon=True) for bundle in self.bundles
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the workers once the queue is empty, waiting for at most `timeout_s`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def check_room(self, texts: int) -> None:
        """Raises QueueFull where so many more texts would not fit. A queue that is empty takes a request of
        any size."""
        waiting = self.waiting_texts
        if waiting and waiting + texts > self.limit_texts:
            raise QueueFull(waiting, self.retry_after_s())

    def retry_after_s(self) -> int:
        """In how many seconds what waits now will be embedded, at the measured rate."""
        least, most = RETRY_AFTER_S
        seconds = self.waiting_texts / self.rate_texts_s if self.rate_texts_s else least
        return max(least, min(most, math.ceil(seconds)))

    def submit(self, texts: list[str], role: str = "text") -> Job:
        """Queue the texts of a request; await the job's `done`. Raises QueueFull."""
        self.check_room(len(texts))
        embeddings = np.empty((len(texts), self.bundles[0].embedding_dim()), np.float32)
        job = Job(texts, embeddings, self._loop.create_future(), role=role)
        with self._changed:
            self._jobs.append(job)
            self.waiting_texts += len(texts)
            self._changed.notify()
        return job

    def drop(self, job: Job) -> None:
        """Forget the texts of a job that no worker has taken yet; those of a finished job are none."""
        if job.taken == len(job.texts):
            return
        with self._changed:
            self.waiting_texts -= len(job.texts) - job.taken
            job.taken = len(job.texts)
            if job in self._jobs:
                self._jobs.remove(job)

    def _work(self, bundle: Bundle) -> None:
        for encoder in bundle.encoders:
            encoder.encode("warm")
        with self._changed:
            self._warm += 1
        while parts := self._take(bundle.max_tokens):
            started = time.perf_counter()
            try:
                tokens = self._embed(bundle, parts)
            except Exception as error:  # noqa: BLE001 - raised again in every request that waits for it; the worker goes on
                self._loop.call_soon_threadsafe(_fail, parts, error)
                continue
            texts = sum(part.stop - part.start for part in parts)
            self._measure(texts / (time.perf_counter() - started))
            self.count(texts, tokens)

    def _take(self, max_tokens: int) -> list[Part]:
        """What waits, up to the bound; waits for something to come. Empty when the queue has stopped."""
        parts, tokens = list[Part](), 0
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            while self._jobs and tokens < self.batch_tokens:
                job = self._jobs.popleft()
                start = job.taken
                while job.taken < len(job.texts) and tokens < self.batch_tokens:
                    length = len(job.texts[job.taken])
                    tokens += 2 + min(length // CHARACTERS_PER_TOKEN, max_tokens)
                    tokens += length // CHARACTERS_TO_TOKENIZE
                    job.taken += 1
                parts.append(Part(job, start, job.taken))
                self.waiting_texts -= job.taken - start
                if job.taken < len(job.texts):
                    self._jobs.append(job)
        return parts

    def _embed(self, bundle: Bundle, parts: list[Part]) -> int:
        """Embed the parts in one call, and wake the requests that are complete. Returns the tokens."""
        ids = [row for part in parts for row in bundle.tokenize(part.texts, part.job.role)]
        owners = [bundle.of(part.job.role) for part in parts for _ in part.texts]
        embeddings, at, complete = np.empty((len(ids), bundle.embedding_dim()), np.float32), 0, []
        for encoder in bundle.encoders:
            rows = [row for row, owner in enumerate(owners) if owner is encoder]
            embeddings[rows] = encoder.encode_ids([ids[row] for row in rows], batch_tokens=RUN_TOKENS)
        for part in parts:
            job, count = part.job, part.stop - part.start
            job.embeddings[part.start : part.stop] = embeddings[at : at + count]
            with self._changed:  # another worker may have the next part of this job
                job.tokens += sum(map(len, ids[at : at + count]))
                job.embedded += count
                if job.embedded == len(job.texts):
                    complete.append(job)
            at += count
        self._loop.call_soon_threadsafe(_finish, complete)
        return sum(map(len, ids))

    def _measure(self, rate_texts_s: float) -> None:
        with self._changed:
            rate = rate_texts_s * len(self.bundles)
            self.rate_texts_s = 0.9 * self.rate_texts_s + 0.1 * rate if self.rate_texts_s else rate


def _finish(jobs: list[Job]) -> None:
    for job in jobs:
        if not job.done.done():
            job.done.set_result(None)


def _fail(parts: list[Part], error: Exception) -> None:
    for part in parts:
        if not part.job.done.done():
            part.job.done.set_exception(error)
