"""Open a bundle and encode texts: the reference runner, on numpy, tokenizers and onnxruntime alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy import ndarray
from tokenizers import Tokenizer

from edgedistill import files, machine
from edgedistill.errors import CheckFailed, UserError, border, raise_failed
from edgedistill.files import Json
from edgedistill.runtime import manifest as manifests
from edgedistill.runtime import prompts as prompts_
from edgedistill.runtime.arguments import MOST_THREADS, given_texts, listed, positive
from edgedistill.runtime.batching import longest_first, pad
from edgedistill.runtime.bundle_location import choose_precision, locate
from edgedistill.runtime.compact import Calibration, compact, layout
from edgedistill.runtime.onnx_session import BundleSession
from edgedistill.runtime.prompts import Prompts
from edgedistill.runtime.sentences import divided
from edgedistill.runtime.similarity import (
    COSINE,
    PROBABILITY,
    Measure,
    check_spaces,
    search,
    similarity,
    softmax,
    unit_rows,
)
from edgedistill.runtime.trust import GET_AGAIN, graph_check, tokenizer_check
from edgedistill.session import progress_bar

BATCH_TOKENS = {"cpu": 384, "cuda": 16_384}  # with padding; fits a processor's cache, and bounds memory
WINDOW = 32_768  # texts tokenized and sorted at a time, which bounds memory too
SIDES = ("query", "document")  # of a pair: the folders of its encoders, which are bundles of their own
Columns = Sequence[Sequence[ndarray]]  # the token ids of the first texts of items, and of the second
Advance = Callable[[int], object]  # is told how many items are done
Item = str | Sequence[str]  # what a classifier labels: a text, or a pair of texts


class Classification(NamedTuple):
    """The predicted labels of n items: the most probable label of each, and the probabilities of all labels,
    (n, C) float32, in the order of `Bundle.labels`. The rows of these sum to 1."""

    labels: list[str]
    probabilities: ndarray


class Bundle:
    """An opened bundle. `edgedistill.load` opens it.

    An encoder has `encode`, `encode_query`, `encode_document`, `search` and `similarity`. A classifier has
    `classify`, see `ClassifierBundle`. `with edgedistill.load("nano") as encoder:` closes it at the end.

    Several threads may call one bundle at the same time. Each call uses the bundle's `threads`, so open it
    with `threads=1` if many calls run at once. A bundle may be pickled, for multiprocessing: the copy opens
    its folder again.

    folder: where its files are.
    manifest: the content of its manifest.json, a dict.
    precision: of its graph: "int8", "qdq", "w8", "w4", "fp16" or "fp32".
    threads: how many onnxruntime uses for a call.
    dims: the dimensions that its embeddings may have, the largest first. Most students have one; those
        trained for several (Matryoshka) have more.
    max_tokens: longer texts are truncated to this many tokens.
    labels: of a classifier; otherwise empty.
    pair: whether a classifier labels pairs of texts.
    prompts: what it puts before texts, a named tuple (text, query, document) of strings, often empty.
    calibration: how it makes int8 and binary embeddings, as measured by the export. Give it to
        `edgedistill.search` with binary documents.
    similarity: the function `edgedistill.similarity`.
    """

    measure: Measure = COSINE  # how its rows are compared with torch's

    def __init__(self, folder: Path, manifest: Json, precision: str, threads: int, device: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.precision = precision
        self.threads = threads
        self.dims: list[int] = manifest["dims"]
        self.max_tokens: int = manifest["max_tokens"]
        self.labels: list[str] = manifest.get("labels", [])
        self.pair: bool = len(manifest.get("inputs", ())) == 4
        self._device = device
        self._session = BundleSession(folder, manifest, precision, threads, device)
        self.prompts = prompts_.read(manifest)
        self.calibration = Calibration.of(manifest)
        self._pad_id: int = manifest.get("pad_id", 0)
        with tokenizer_check.readable(folder):
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        side = (self._tokenizer.truncation or {}).get("direction", "right")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens, direction=side)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as its folder and its manifest's digest: the files are opened, and checked,
        again."""
        digest = manifests.digest(self.manifest)
        return _opened_again, (self.folder.absolute(), digest, self.precision, self.threads, self._device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.manifest['name']}:{self.precision}>"

    def of(self, role: str) -> Bundle:
        """What embeds texts in a role: the bundle itself; of a pair one of its two encoders."""
        self.prompts.of(role)
        return self

    @border()
    def encode(
        self,
        texts: str | Iterable[str],
        dim: int | None = None,
        batch_tokens: int | None = None,
        progress: bool = False,
        role: str = "text",
        precision: str = "float32",
    ) -> ndarray:
        """Embed n texts that you want to compare with each other: (n, d) float32, a row of unit length for
        each text. One string gives one embedding, (d,). For search, use `encode_query` and `encode_document`.

            >>> encoder.encode(["A cat sleeps.", "A kitten is asleep."]).shape
            (2, 384)
            >>> encoder.encode(["A cat sleeps."], precision="binary").shape
            (1, 48)

        texts: strings in a list, a generator, an array or a column of a table. Texts longer than `max_tokens`
            are truncated; the empty string is allowed.
        dim: the dimensions to return, one of `dims`; by default the largest. The embedding is cut and
            normalized again.
        batch_tokens: the most tokens in a batch, with padding; by default 384 on cpu and 16,384 on cuda.
            Larger batches take more memory.
        progress: show a progress bar on stderr.
        role: "text", "query" or "document". It chooses the prompt before each text.
        precision: of the returned embeddings: "float32", "int8" (n, d) or "binary" (n, d/8) uint8.
            `similarity` and `search` accept all three. It is not the graph's precision, which `load`
            chooses.

        Raises UserError for an item that is not a string, and names its index; for a `dim` not in `dims`; and
        for an unknown role or precision. Raises CheckFailed if the graph returns anything but embeddings of
        unit length.
        """
        encoder = self.of(role)
        dim = self.embedding_dim(dim)
        layout(precision, dim)
        strings = [texts] if isinstance(texts, str) else given_texts(texts)
        embeddings = np.zeros((len(strings), dim), np.float32)
        with progress_bar(len(strings), progress) as advance:
            for start in range(0, len(strings), WINDOW):
                ids = encoder._tokenize(strings[start : start + WINDOW], start, role)
                embeddings[start : start + WINDOW] = encoder._run([ids], dim, batch_tokens, advance)
        rows = compact(embeddings, precision, encoder.calibration)
        return rows[0] if isinstance(texts, str) else rows

    def encode_query(self, texts: str | Iterable[str], dim: int | None = None, **options: Any) -> ndarray:
        """Embed n search queries: `encode` with the bundle's prompt for queries, if it has one.

        options: `batch_tokens`, `progress` and `precision`, as of `encode`.
        """
        return self.encode(texts, dim, role="query", **options)

    def encode_document(self, texts: str | Iterable[str], dim: int | None = None, **options: Any) -> ndarray:
        """Embed n documents to search in: `encode` with the bundle's prompt for documents, if it has one.

        options: `batch_tokens`, `progress` and `precision`, as of `encode`.
        """
        return self.encode(texts, dim, role="document", **options)

    similarity = staticmethod(similarity)

    @border()
    def search(
        self,
        query: str | Iterable[str],
        documents: Iterable[str] | ndarray,
        k: int = 10,
        space: str | None = None,
    ) -> tuple[ndarray, ndarray]:
        """The k documents most similar to a query, best first: their indices and cosines, both (k,). For a
        list of q queries both are (q, k). It compares the query with every document, by cosine alone; the
        command `edgedistill search` also ranks by words (BM25). To binary documents it applies the bundle's
        `calibration`; to rank their candidates again by int8 or float32, call `edgedistill.search`.

            >>> indices, cosines = encoder.search("When does the train go?", texts, k=1)
            >>> texts[indices[0]]
            'The train leaves at nine.'

        query: a string, or several.
        documents: texts, which it embeds; or embeddings from `encode_document`, in any precision.
        k: the number of documents to return; fewer if there are fewer.
        space: the `space` of the bundle that made these embeddings, if you stored it.

        Raises UserError as `encode`, and for embeddings of other dimensions or another space.
        """
        check_spaces(space, self.space)
        one = isinstance(query, str)
        if not isinstance(query, str):
            query = given_texts(query, "query", "a string or a list")
        k = positive(k, "k")
        dim = None
        rows = documents
        if isinstance(documents, ndarray) and documents.dtype.kind in "fiu":
            width = documents.shape[1] if documents.ndim == 2 else 0
            dim = 8 * width if documents.dtype == np.uint8 else width
            if dim not in self.dims:
                raise UserError(
                    f"documents: embeddings of shape {documents.shape}, those of {self.manifest['name']} "
                    f"have (n, {' or '.join(map(str, self.dims))}); give what encode_document returns"
                )
        else:
            rows = self.encode_document(documents)
        asked = np.atleast_2d(self.encode_query(query, dim))
        numbers, cosines = search(asked, np.asarray(rows), k, calibration=self.calibration)
        return (numbers[0], cosines[0]) if one else (numbers, cosines)

    def passages(self, text: str, role: str = "document") -> list[str]:
        """Split a text into parts that need no truncation: one part if it has at most `max_tokens` tokens,
        otherwise parts of at most half as many, at the ends of sentences where possible.

            >>> [len(part) for part in encoder.passages("The train leaves at nine. " * 50)]
            [545, 545, 207]
        """
        encoder = self.of(role)
        most = encoder.max_tokens - encoder._tokens_around[role]
        if text.isascii() and len(text) <= most:
            return [text]

        def spans(part: str) -> list[tuple[int, int]]:
            return encoder._whole_tokenizer.encode(part, add_special_tokens=False).offsets

        return list(divided(text, spans, most))

    def token_counts(self, texts: Sequence[str], role: str = "text") -> list[int]:
        """The number of tokens of each text before truncation, with its prompt and special tokens."""
        encoder = self.of(role)
        prompt = encoder.prompts.of(role)
        encodings = encoder._whole_tokenizer.encode_batch_fast([prompt + text for text in texts])
        return [len(encoding) for encoding in encodings]

    def tokenize(self, texts: Iterable[str], role: str = "text") -> list[ndarray]:
        """The token ids of each text, (T,) int64: with the role's prompt and special tokens, truncated to
        `max_tokens`. Raises UserError as `encode`."""
        return self.of(role)._tokenize(given_texts(texts), 0, role)

    def classify(self, items: Any) -> Any:
        """Label texts or pairs of texts, see `ClassifierBundle`. An encoder has no labels and raises
        UserError."""
        raise UserError(
            f"{self.manifest['name']}: an encoder, which has no labels; call encode, or train a "
            "classifier with a finetune stage"
        )

    @property
    def space(self) -> str | None:
        """The identifier of the student's weights. Embeddings may be compared only within one space, so store
        it with them. All precisions of a student share it. A pair has that of its documents. None in old
        bundles."""
        return self.manifest.get("space")

    @property
    def encoders(self) -> list[Bundle]:
        """The bundle itself; of a pair its two encoders."""
        return [self]

    def close(self) -> None:
        """Free the graph and its memory. After that, calls raise UserError."""
        for encoder in self.encoders:
            encoder._session.close()

    def not_read(
        self, texts: Sequence[str], ids: Sequence[ndarray], role: str = "text", mark: str = ""
    ) -> list[tuple[int, int, bool]]:
        """Of each text, whose token ids `tokenize` returned: how many tokens are not among them; how many of
        them are the unknown token, without those of a `mark` between cells, which is none of their words; and
        whether it has no others but those around it."""
        encoder = self.of(role)
        most, around = encoder.max_tokens, encoder._tokens_around[role]
        long = [at for at, row in enumerate(ids) if len(row) >= most]
        whole = dict(zip(long, encoder.token_counts([texts[at] for at in long], role), strict=True))
        of_mark: Any = encoder._whole_tokenizer.encode(mark, add_special_tokens=False).ids
        counts = []
        lacked = of_mark.count(encoder.unknown_id)
        for at, (text, row) in enumerate(zip(texts, ids, strict=True)):
            marks = text.count(mark)
            count = max(0, int((row == encoder.unknown_id).sum()) - lacked * marks)
            others = len(row) - around - len(of_mark) * marks
            counts.append((whole.get(at, most) - most, count, 0 < count >= others))
        return counts

    @cached_property
    def _tokens_around(self) -> dict[str, int]:
        """How many tokens a prompt and the special tokens take, by role."""
        return {role: self.token_counts([""], role)[0] for role in ("text", "query", "document")}

    @cached_property
    def _whole_tokenizer(self) -> Tokenizer:
        """The tokenizer without a limit."""
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.no_truncation()
        return tokenizer

    def encode_ids(
        self,
        ids: Sequence[ndarray],
        dim: int | None = None,
        batch_tokens: int | None = None,
        precision: str = "float32",
    ) -> ndarray:
        """The embeddings of texts given as token ids, as `encode` returns them. Raises UserError for one
        without tokens or above `max_tokens`."""
        rows = self.of("text")._run([ids], self.embedding_dim(dim), batch_tokens)
        return compact(rows, precision, self.calibration)

    def item_rows(self, items: Sequence[Sequence[ndarray]], batch_tokens: int | None = None) -> ndarray:
        """(n, d) embeddings, of a classifier (n, C) logits, of items: the token ids of each of their
        texts."""
        columns = zip(*items, strict=True)
        return self.of("text")._run([*columns], manifests.width(self.manifest), batch_tokens)

    def embedding_dim(self, dim: int | None = None) -> int:
        """The dimensions of an embedding for `dim`, by default the largest. Raises UserError for one that is
        none of `dims`."""
        if dim is None or (dim in self.dims and dim is not True):
            return self.dims[0 if dim is None else self.dims.index(dim)]
        name = self.manifest["name"]
        known = ", ".join(map(str, self.dims))
        fact = f"{name} was trained for {known} dimensions; choose one of these"
        if len(self.dims) == 1:
            fact = f"{name} has {known} dimensions and cannot be cut; leave it out"
        raise UserError(f"dim={dim!r}: {fact}")

    @property
    def graph_file(self) -> Path:
        """Where its graph is."""
        return self.folder / str(self.manifest["precisions"][self.precision]["file"])

    @property
    def fallback(self) -> str:
        """Which int8 products of its graph run on the processor, since CUDA has no kernel for them; nothing
        on other devices. To be logged wherever a bundle is run on a device that the user named."""
        if self._device != "cuda":
            return ""
        graphs = [encoder.manifest["precisions"][encoder.precision] for encoder in self.encoders]
        operators = dict.fromkeys(name for graph in graphs for name in graph.get("operators", ()))
        products = [name for name in operators if "MatMulInteger" in name]
        return f"{', '.join(products)} has no CUDA kernel and runs on the processor" if products else ""

    @cached_property
    def unknown_id(self) -> int | None:
        """The id of the tokenizer's unknown token; None where it has a token for every byte."""
        model = json.loads(self._tokenizer.to_str())["model"]
        if model.get("byte_fallback"):
            return None
        token = model.get("unk_token")
        return self._tokenizer.token_to_id(token) if token is not None else model.get("unk_id")

    def _tokenize(self, texts: Sequence[str], first: int, role: str = "text") -> list[ndarray]:
        """`first`: the index of texts[0], for errors."""
        prompt = self.prompts.of(role)
        try:
            with tokenizer_check.readable(self.folder):
                encodings = self._tokenizer.encode_batch_fast(
                    [prompt + text for text in texts] if prompt else list(texts)
                )
        except (TypeError, UnicodeError):
            for at, text in enumerate(texts, first):
                if not manifests.is_text(text):
                    raise UserError(
                        f"texts[{at}]: contains half a surrogate pair, which is not text; decode it again"
                    ) from None
            raise
        rows = [np.array(encoding.ids, np.int64) for encoding in encodings]
        for at, row in enumerate(rows, first):
            if not len(row):
                raise UserError(f"texts[{at}]: has no tokens in this bundle's vocabulary; leave it out")
        return rows

    def _run(
        self, columns: Columns, width: int, batch_tokens: int | None = None, advance: Advance = int
    ) -> ndarray:
        """The row (n, width) of each item, given as the token ids of its first and second text: an embedding,
        cut to that many dimensions, or logits."""
        for column in columns:
            for at, ids in enumerate(column):
                if not 0 < len(ids) <= self.max_tokens:
                    raise UserError(f"ids[{at}]: {len(ids)} tokens; this bundle takes 1 to {self.max_tokens}")
        most = BATCH_TOKENS.get(self._device, BATCH_TOKENS["cpu"])
        if batch_tokens is not None:
            most = positive(batch_tokens, "batch_tokens")
        lengths = [len(row) for row in columns[0]]
        out = np.zeros((len(columns[0]), width), np.float32)
        if self.pair:
            lengths = [2 * max(map(len, pair)) for pair in zip(*columns, strict=True)]
        for batch in longest_first(lengths, most):
            arrays: list[ndarray] = []
            for column in columns:
                arrays += pad([column[at] for at in batch], self._pad_id)
            rows = self._session.run(dict(zip(manifests.INPUTS, arrays, strict=False)))
            out[batch] = rows if width == rows.shape[1] else unit_rows(rows[:, :width])
            advance(len(batch))
        return out


class MeanBundle(Bundle):
    """What embeds the documents of a pair by both of its encoders: the mean of the two embeddings, at unit
    length. In its token ids those of the query encoder are behind the other's vocabulary.
    """

    def __init__(self, document: Bundle, query: Bundle) -> None:
        vars(self).update(vars(document))
        self._both = (document, query)
        self._vocabulary = document._tokenizer.get_vocab_size()

    @property
    def space(self) -> str | None:
        """That of both encoders together; None where one of them has none."""
        spaces = [encoder.space for encoder in self._both]
        return None if None in spaces else files.cache_key(mean=spaces)[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as the document encoder alone: the pair has the other."""
        return self._both[0].__reduce__()

    def passages(self, text: str, role: str = "document") -> list[str]:
        """As of a bundle: the parts are read whole by both encoders."""
        document, query = self._both
        return [part for whole in document.passages(text, role) for part in query.passages(whole, role)]

    def _tokenize(self, texts: Sequence[str], first: int, role: str = "text") -> list[ndarray]:
        document, query = (encoder._tokenize(texts, first, role) for encoder in self._both)
        return [np.concatenate([a, b + self._vocabulary]) for a, b in zip(document, query, strict=True)]

    def _run(
        self, columns: Columns, width: int, batch_tokens: int | None = None, advance: Advance = int
    ) -> ndarray:
        (ids,) = columns
        vocabulary = self._vocabulary
        document, query = self._both
        rows = document._run([[row[row < vocabulary] for row in ids]], width, batch_tokens, advance)
        of_query = [row[row >= vocabulary] - vocabulary for row in ids]
        return unit_rows(rows + query._run([of_query], width, batch_tokens))


class PairBundle(Bundle):
    """An opened pair of encoders of one space, one for queries and one for documents. It has the methods of
    `Bundle`; but `encode` needs the role "query" or "document". `precision`, `max_tokens` and the like are
    those of the query encoder.

    query: the encoder of queries, a `Bundle`.
    document: the encoder of documents, a `Bundle`.
    dims: the dimensions that both have.
    """

    def __init__(self, folder: Path, manifest: Json, query: Bundle, document: Bundle) -> None:
        for name, opened in zip(SIDES, (query, document), strict=True):
            if opened.labels or isinstance(opened, PairBundle):
                kind = "a classifier" if opened.labels else "a pair itself"
                raise UserError(f"{folder / name}: {kind}, not an encoder; {GET_AGAIN}")
        if query.dims[0] != document.dims[0]:
            raise UserError(
                f"{folder}: {query.dims[0]} dimensions for queries, {document.dims[0]} for documents, "
                f"so they are not of one space; {GET_AGAIN}"
            )
        self.folder = folder
        self.manifest = manifest
        is_mean = manifest.get("documents") == manifests.MEAN
        self.query = query
        self.document = MeanBundle(document, query) if is_mean else document
        self.precision = query.precision
        self.threads = query.threads
        self.max_tokens = query.max_tokens
        self.labels = []
        self.pair = False
        self._device = query._device
        self.prompts = Prompts("", query.prompts.query, document.prompts.document)
        self.dims = [dim for dim in query.dims if dim in document.dims]
        self.calibration = document.calibration

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as its encoders."""
        return PairBundle, (self.folder.absolute(), self.manifest, *self.encoders)

    def of(self, role: str) -> Bundle:
        """The encoder of a role. Raises UserError for texts that are neither queries nor documents."""
        self.prompts.of(role)
        if role in SIDES:
            return self.query if role == SIDES[0] else self.document
        raise UserError(
            f"{self.manifest['name']}: a pair of encoders, for queries and documents; call encode_query or "
            f"encode_document (--as query or document), or open {self.folder}/query or {self.folder}/document"
        )

    @property
    def space(self) -> str | None:
        return self.document.space

    @property
    def encoders(self) -> list[Bundle]:
        return [self.query, self.document]

    @cached_property
    def unknown_id(self) -> int | None:
        return self.query.unknown_id


class ClassifierBundle(Bundle):
    """An opened bundle that labels texts with one of `labels`; pairs of texts if `pair` is true. It has the
    attributes of `Bundle`. No classifier ships; a recipe with a `finetune` stage trains one.

        labels, probabilities = edgedistill.load("bundles/mine").classify(["A fine film."])
    """

    measure = PROBABILITY

    @border()
    def encode(self, *arguments: Any, **options: Any) -> ndarray:
        """Raises UserError: a classifier has no embeddings."""
        raise UserError(
            f"{self.manifest['name']}: a classifier ({', '.join(self.labels)}), which has no embeddings; "
            "call classify"
        )

    encode_ids = encode

    @border()
    def classify(self, items: Iterable[Item]) -> Classification:
        """Label n items: (labels, probabilities), a list of n strings and (n, C) float32. Its C columns are
        in the order of the bundle's `labels`.

        items: strings; or pairs such as ("A text.", "Another one."), if the classifier labels pairs.

        Raises UserError for any other item, and names its index.
        """
        probabilities = softmax(self.logits(items))
        return Classification([self.labels[at] for at in probabilities.argmax(1).tolist()], probabilities)

    def logits(self, items: Iterable[Item]) -> ndarray:
        """The classifier head's outputs before softmax, (n, C) float32. Raises UserError as `classify`."""
        items = listed(items, "items", 1 + self.pair)
        logits = np.zeros((len(items), len(self.labels)), np.float32)
        for start in range(0, len(items), WINDOW):
            columns = self._columns(items[start : start + WINDOW], start)
            ids = [self._tokenize(column, start) for column in columns]
            logits[start : start + WINDOW] = self._run([*ids], len(self.labels))
        return logits

    def tokenize_items(self, items: Sequence[Item]) -> list[list[ndarray]]:
        """The token ids of each item: a list with those of its text, or of its two texts."""
        columns = self._columns(listed(items, "items", 1 + self.pair), 0)
        ids = [self._tokenize(texts, 0) for texts in columns]
        return list(map(list, zip(*ids, strict=True)))

    def _columns(self, items: list[Item], first: int) -> list[list[str]]:
        """The first texts of all items and, for pairs, the second ones."""
        rows = []
        for at, item in enumerate(items, first):
            texts = list(item) if isinstance(item, Iterable) and not isinstance(item, str) else [item]
            if len(texts) != 1 + self.pair or not all(isinstance(text, str) for text in texts):
                wanted, kind = ("a pair of strings", "pairs") if self.pair else ("a string", "texts")
                raise UserError(f"items[{at}]: not {wanted}; {self.manifest['name']} classifies {kind}")
            rows.append(texts)
        return list(map(list, zip(*rows, strict=True))) or [[]] * (1 + self.pair)


@border()
def load(
    name: str | Path,
    precision: str | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> Bundle:
    """Open a bundle, after checking the sha256 of every file that it reads. It returns a `Bundle`; for a pair
    of encoders a `PairBundle`, for a classifier a `ClassifierBundle`, which are subclasses.

        >>> edgedistill.load("nano", precision="int8", threads=1)
        <Bundle nano:int8>

    name: the name of a shipped bundle such as "nano"; a folder; or the name of a folder in bundles/.
        "bundles/x:int8" also names the precision.
    precision: of the graph, one that the bundle has: "int8", "qdq", "w8", "w4", "fp16" or "fp32"; by default
        the fastest on this machine.
    threads: how many onnxruntime uses for a call; by default one for each processor that this process may
        use.
    device: "cpu", "cuda" (with onnxruntime-gpu), or another provider of the installed onnxruntime, such as
        "openvino" or "coreml".

    Raises UserError if there is no such bundle, precision or device, if CUDA does not start, or if the bundle
    needs a newer edgedistill. Raises CheckFailed if a file is missing, changed or too large, or if the graph
    is not one that an export writes.
    """
    if threads is not None:
        positive(threads, "threads", MOST_THREADS)
    folder, named = locate(name)
    manifest = manifests.read(folder)
    if manifest["kind"] == manifests.PAIR:
        raise_failed(manifests.changes(folder, manifest, [f"{side}/manifest.json" for side in SIDES]))
        precision = precision or named  # of the document encoder too, where it has it
        query = load(folder / SIDES[0], precision, threads, device)
        has_it = precision in manifests.read(folder / SIDES[1]).get("precisions", ())
        document = load(folder / SIDES[1], precision if has_it else None, threads, device)
        return PairBundle(folder, manifest, query, document)
    precision = choose_precision(manifest, folder, precision or named, device)
    entry = manifest["precisions"][precision]
    raise_failed(manifests.changes(folder, manifest, ("tokenizer.json", entry["file"])))
    threads = machine.processors() if threads is None else threads
    os.environ.setdefault(
        "RAYON_NUM_THREADS", str(threads)
    )  # of the tokenizer; read when its thread pool starts
    tokenizer_check.check(folder / "tokenizer.json")
    graph_check.check(folder / entry["file"])
    opened = kind_of(manifest)(folder, manifest, precision, threads, device)
    with tokenizer_check.readable(folder):
        opened._tokenizer.encode("a")  # a tokenizer whose parts do not fit together fails here
    return opened


def _opened_again(folder: Path, digest: str, precision: str, threads: int, device: str) -> Bundle:
    """A bundle that was copied or pickled. Raises CheckFailed where its folder holds another one by now."""
    opened = load(folder, precision, threads, device)
    if manifests.digest(opened.manifest) != digest:
        raise CheckFailed(f"{folder}: changed since it was opened; open it with edgedistill.load")
    return opened


def kind_of(manifest: Json) -> type[Bundle]:
    """The class that opens a bundle: of a classifier, ClassifierBundle."""
    return ClassifierBundle if manifest.get("labels") else Bundle
