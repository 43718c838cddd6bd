"""The texts of all requests wait in one queue; worker threads take what waits, up to a bound, and embed it as
one batch.

No worker waits for a batch to fill: an idle server embeds a text at once, and batches grow with the load.
Batches are small, and a request that fits in half of one is short: short ones have half of each batch, in the
order in which they came, and long ones what is left, in parts and in turn. So a short request waits for the
batch that is being embedded and for other short ones, and no long one waits for ever.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
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

    waiting_s: float

    @property
    def retry_after_s(self) -> int:
        least, most = RETRY_AFTER_S
        return max(least, min(most, math.ceil(self.waiting_s)))


@dataclass(eq=False, slots=True)
class Job:
    """The texts of one request, and their embeddings as they come.

    costs: estimated tokens of each text. embeddings: (n, d) float32, complete when `done` is. role: what the
        texts are, for the bundle's prompts. short: which of the queue's halves it waits in. tokens: of all
        texts, without padding. taken, embedded: counts of texts.
    """

    texts: list[str]
    costs: list[int]
    embeddings: np.ndarray
    done: asyncio.Future[None]
    role: str
    short: bool
    tokens: int = 0
    taken: int = 0
    embedded: int = 0


class Part(NamedTuple):
    """The texts start to stop of a job, which a worker has taken."""

    job: Job
    start: int
    stop: int

    @property
    def texts(self) -> list[str]:
        return self.job.texts[self.start : self.stop]

    @property
    def cost(self) -> int:
        return sum(self.job.costs[self.start : self.stop])


@dataclass(eq=False)
class RequestQueue:
    """Embeds the texts of concurrent requests in common batches. Used from one event loop.

    bundles: one per worker thread. limit_s: how long what waits may take, at the measured rate; short
        requests count only short ones. batch_tokens: estimated tokens per batch; at least one text is taken.
    count: called with the texts and tokens of every batch, from the worker's thread.
    """

    bundles: Sequence[Bundle]
    limit_s: float
    batch_tokens: int
    count: Callable[[int, int], None] = lambda texts, tokens: None
    waiting_texts: int = 0
    rate: float = 0.0  # estimated tokens a second of all workers together, measured while they work
    # of short requests (True) and of long ones, with the estimated tokens that wait
    _jobs: dict[bool, deque[Job]] = field(default_factory=lambda: {True: deque(), False: deque()})
    _waiting: Counter[bool] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopping: bool = False

    def start(self) -> None:
        """Start the workers. Called in the event loop that will submit."""
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

    def check_room(self, cost: int = 0) -> None:
        """Raises QueueFull where a request of so many estimated tokens would wait for too long. A queue that
        is empty takes a request of any size."""
        waiting = self._waiting[True] if self._is_short(cost) else self._waiting.total()
        if waiting and self.rate and (seconds := (waiting + cost) / self.rate) > self.limit_s:
            raise QueueFull(seconds)

    def submit(self, texts: list[str], role: str = "text") -> Job:
        """Queue the texts of a request; await the job's `done`. Raises QueueFull."""
        costs = [self._cost(len(text)) for text in texts]
        cost = sum(costs)
        self.check_room(cost)
        embeddings = np.empty((len(texts), self.bundles[0].embedding_dim()), np.float32)
        job = Job(texts, costs, embeddings, self._loop.create_future(), role, self._is_short(cost))
        with self._changed:
            self._jobs[job.short].append(job)
            self._waiting[job.short] += cost
            self.waiting_texts += len(texts)
            self._changed.notify()
        return job

    def drop(self, job: Job) -> None:
        """Forget the texts of a job that no worker has taken yet; those of a finished job are none."""
        if job.taken == len(job.texts):
            return
        with self._changed:
            self._forget(Part(job, job.taken, len(job.texts)))
            if job in self._jobs[job.short]:
                self._jobs[job.short].remove(job)

    def _cost(self, characters: int) -> int:
        """The estimated tokens of a text."""
        read = min(characters // CHARACTERS_PER_TOKEN, self.bundles[0].max_tokens)
        return 2 + read + characters // CHARACTERS_TO_TOKENIZE

    def _is_short(self, cost: int) -> bool:
        """Whether so many estimated tokens fit in half of a batch."""
        return cost <= self.batch_tokens // 2

    def _work(self, bundle: Bundle) -> None:
        while parts := self._take():
            started = time.perf_counter()
            try:
                tokens = self._embed(bundle, parts)
            except Exception as error:  # noqa: BLE001 - raised again in every request that waits for it; the worker goes on
                self._loop.call_soon_threadsafe(_fail, parts, error)
                continue
            self._measure(sum(part.cost for part in parts) / (time.perf_counter() - started))
            self.count(sum(part.stop - part.start for part in parts), tokens)

    def _take(self) -> list[Part]:
        """What waits, up to the bound; waits for something to come. Empty when the queue has stopped."""
        parts, tokens = list[Part](), 0
        short, long = self._jobs[True], self._jobs[False]
        with self._changed:
            self._changed.wait_for(lambda: short or long or self._stopping)
            while tokens < self.batch_tokens and (short or long):
                jobs = short if short and (not long or self._is_short(tokens)) else long
                job = jobs.popleft()
                stop = job.taken
                while stop < len(job.texts) and tokens < self.batch_tokens:
                    tokens += job.costs[stop]
                    stop += 1
                parts.append(Part(job, job.taken, stop))
                self._forget(parts[-1])
                if stop < len(job.texts):
                    jobs.append(job)
        return parts

    def _forget(self, part: Part) -> None:
        """Count the texts of a part as waiting no longer."""
        part.job.taken = part.stop
        self.waiting_texts -= part.stop - part.start
        self._waiting[part.job.short] -= part.cost

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

    def _measure(self, rate: float) -> None:
        with self._changed:
            rate *= len(self.bundles)
            self.rate = 0.9 * self.rate + 0.1 * rate if self.rate else rate


def _finish(jobs: list[Job]) -> None:
    for job in jobs:
        if not job.done.done():
            job.done.set_result(None)


def _fail(parts: list[Part], error: Exception) -> None:
    for part in parts:
        if not part.job.done.done():
            part.job.done.set_exception(error)
