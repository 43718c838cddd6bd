"""The texts of all requests wait in two queues; worker threads take what waits, up to a bound, and embed it
as one batch.

No worker waits for a batch to fill: an idle server embeds a text at once, and batches grow with the load.
Batches are small, and a request that fits in half of one is short: the texts of short ones have half of each
batch in the order in which they came, those of long ones what is left, in parts and in turn. So a short
request waits for the batch that is being embedded and for other short ones, and no long one waits for ever.
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

    embeddings: (n, d) float32, complete when `done` is. role: what the texts are, for the bundle's prompts.
        short: which queue it waits in. left: texts to be embedded. tokens: of all texts, those `read`,
        without padding, the `unknown` ones among them, and those `cut` at the bundle's limit.
    """

    embeddings: np.ndarray
    done: asyncio.Future[None]
    role: str
    short: bool
    left: int
    tokens: Counter[str] = field(default_factory=Counter)


class Text(NamedTuple):
    """A text of a job, which becomes a row of its embeddings. cost: its estimated tokens."""

    job: Job
    row: int
    text: str
    cost: int


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
    rate: float = 0.0  # estimated tokens a second of all workers together, measured while they work
    # The texts of each short request (True) and of each long one, with the estimated tokens that wait.
    _texts: dict[bool, deque[deque[Text]]] = field(default_factory=lambda: {True: deque(), False: deque()})
    _waiting: Counter[bool] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopping: bool = False

    @property
    def waiting_texts(self) -> int:
        return sum(len(texts) for requests in self._texts.values() for texts in requests)

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
        self.check_room(sum(costs))
        embeddings = np.empty((len(texts), self.bundles[0].embedding_dim()), np.float32)
        short = self._is_short(sum(costs))
        job = Job(embeddings, self._loop.create_future(), role, short, len(texts))
        with self._changed:
            self._waiting[short] += sum(costs)
            rows = enumerate(zip(texts, costs, strict=True))
            self._texts[short].append(deque(Text(job, row, text, cost) for row, (text, cost) in rows))
            self._changed.notify_all()
        return job

    def drop(self, job: Job) -> None:
        """Forget the texts of a job that no worker has taken yet."""
        if job.left:
            with self._changed:
                requests = [texts for texts in self._texts[job.short] if texts[0].job is not job]
                self._texts[job.short] = deque(requests)
                self._waiting[job.short] = sum(text.cost for texts in requests for text in texts)

    def _cost(self, characters: int) -> int:
        """The estimated tokens of a text."""
        read = min(characters // CHARACTERS_PER_TOKEN, self.bundles[0].max_tokens)
        return 2 + read + characters // CHARACTERS_TO_TOKENIZE

    def _is_short(self, cost: int) -> bool:
        """Whether so many estimated tokens fit in half of a batch."""
        return cost <= self.batch_tokens // 2

    def _work(self, bundle: Bundle) -> None:
        while batch := self._take():
            started = time.perf_counter()
            try:
                tokens = self._embed(bundle, batch)
            except Exception as error:  # noqa: BLE001 - raised again in every request that waits for it; the worker goes on
                self._loop.call_soon_threadsafe(_end, {text.job for text in batch}, error)
                continue
            rate = len(self.bundles) * sum(text.cost for text in batch) / (time.perf_counter() - started)
            with self._changed:
                self.rate = 0.9 * self.rate + 0.1 * rate if self.rate else rate
            self.count(len(batch), tokens)

    def _take(self) -> list[Text]:
        """What waits, up to the bound, requests in turn; waits for something to come. Empty when the queue
        has stopped."""
        batch = []
        cost = 0
        with self._changed:
            self._changed.wait_for(lambda: any(self._texts.values()) or self._stopping)
            while cost < self.batch_tokens and any(self._texts.values()):
                short = self._texts[True]
                long = self._texts[False]
                requests = short if short and (not long or self._is_short(cost)) else long
                texts = requests.popleft()
                while texts and cost < self.batch_tokens:
                    cost += texts[0].cost
                    self._waiting[texts[0].job.short] -= texts[0].cost
                    batch.append(texts.popleft())
                if texts:
                    requests.append(texts)
        return batch

    def _embed(self, bundle: Bundle, batch: list[Text]) -> int:
        """Embed the texts, those of each role in one call, and wake the requests that are complete. Returns
        the tokens."""
        total = 0
        for role in {text.job.role for text in batch}:
            texts = [text for text in batch if text.job.role == role]
            encoder = bundle.of(role)
            ids = encoder.tokenize([text.text for text in texts], role)
            embeddings = encoder.encode_ids(ids, batch_tokens=RUN_TOKENS)
            not_read = encoder.not_read([text.text for text in texts], ids, role)
            with self._changed:  # another worker may have other texts of these jobs
                for text, row, embedding, lost in zip(texts, ids, embeddings, not_read, strict=True):
                    text.job.embeddings[text.row] = embedding
                    text.job.tokens.update(read=len(row), cut=lost[0], unknown=lost[1])
                    text.job.left -= 1
                    total += len(row)
        if complete := {text.job for text in batch if not text.job.left}:
            self._loop.call_soon_threadsafe(_end, complete, None)
        return total


def _end(jobs: set[Job], error: Exception | None) -> None:
    """Wake the requests of these jobs."""
    for job in jobs:
        if job.done.done():
            continue
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)
