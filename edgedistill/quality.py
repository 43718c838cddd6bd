"""How good vectors are: graded similarity (STS), retrieval, and agreement with the teacher. An encoder is texts -> (n, d) rows."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from scipy.stats import spearmanr

from edgedistill import files
from edgedistill.errors import UserError, unknown

Encode = Callable[[list[str]], npt.NDArray[np.float32]]
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]

CHUNK_TEXTS = 4096  # of a retrieval corpus, encoded and scored at a time: bounds the memory
POOL = 100  # candidates kept per query between chunks: more than k, so that ties at the edge are broken as trec_eval does


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StsFile(_Part):
    """A table of pairs with a graded score; .tsv or .tsv.gz, split at tabs, no quoting."""

    name: str = Field(description="of the task")
    file: str = Field(description="beside suite.yaml, else under --data")
    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"
    subset_column: str | None = Field(None, description="the column that names a pair's subset; default: `subset`, where there is one")
    subset: list[str] | str | None = Field(None, description="only pairs of these subsets")


class StsSuite(_Part):
    """Graded similarity: Spearman of cosine and score."""

    kind: Literal["sts"]
    name: str | None = None
    about: str = ""
    tasks: list[StsFile] = Field(min_length=1)


class RetrievalFolder(_Part):
    """A BEIR folder: corpus.jsonl, queries.jsonl (each also .gz), qrels.tsv or qrels/test.tsv."""

    name: str = Field(description="of the task")
    folder: str = Field(description="beside suite.yaml, else under --data")
    same_ids: bool = Field(False, description="queries are texts of the corpus under the same id, which must not find themselves")


class RetrievalSuite(_Part):
    """nDCG@10 of cosine ranking."""

    kind: Literal["retrieval"]
    name: str | None = None
    about: str = ""
    tasks: list[RetrievalFolder] = Field(min_length=1)


_SUITE: TypeAdapter[StsSuite | RetrievalSuite] = TypeAdapter(Annotated[StsSuite | RetrievalSuite, Field(discriminator="kind")])
_KINDS: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {"sts": (StsSuite, StsFile), "retrieval": (RetrievalSuite, RetrievalFolder)}


@dataclass(frozen=True)
class Pairs:
    """One STS task: rows of the suite's texts, gold scores, subset of each pair."""

    first: Ints  # (n,) into Suite.texts
    second: Ints
    gold: npt.NDArray[np.float64]  # (n,)
    subset: npt.NDArray[np.str_]  # (n,)


@dataclass(frozen=True)
class Collection:
    """One retrieval task: judged queries in memory, the corpus on disk."""

    corpus: Path
    query_ids: list[str]
    queries: list[str]
    judged: list[dict[str, int]]  # a query's corpus id -> grade
    same_ids: bool

    def chunks(self, size: int = CHUNK_TEXTS) -> Iterator[tuple[list[str], list[str]]]:
        """The corpus as (ids, texts), `size` at a time, read from disk."""
        ids: list[str] = []
        texts: list[str] = []
        for row in _jsonl(self.corpus):
            ids.append(str(row["_id"]))
            texts.append(_clean(f"{row.get('title') or ''} {row.get('text') or ''}"))
            if len(ids) == size:
                yield ids, texts
                ids, texts = [], []
        if ids:
            yield ids, texts


@dataclass(frozen=True)
class Suite:
    """What to measure, its files read and checked."""

    name: str
    kind: Literal["sts", "retrieval"]
    about: str
    texts: list[str]  # sts: every distinct text once; retrieval: the queries
    pairs: dict[str, Pairs]
    collections: dict[str, Collection]

    def sample(self, count: int, seed: int = 0) -> list[str]:
        """`count` texts drawn from the suite's own (retrieval: queries and corpus), with repetition only where it has fewer."""
        texts = list(self.texts)
        for collection in self.collections.values():
            texts += [text for text in next(collection.chunks(), ([], []))[1] if text]
        texts = [text for text in texts if text]
        random = np.random.default_rng(seed)
        rounds = [random.permutation(len(texts)) for _ in range(-(-count // len(texts)))]
        return [texts[i] for i in np.concatenate(rounds)[:count]]


def suite(name: str | Path, data: Path | str | None = None) -> Suite:
    """Read a suite by path or shipped name, with its files: beside suite.yaml first, else under `data` (or $EDGEDISTILL_DATA).

    Raises UserError: unknown name, bad YAML, a file or a column that is not there.
    """
    path = files.find("suite", name)
    spec = _parse(path)
    data = data or os.environ.get("EDGEDISTILL_DATA")
    root = Path(data) if data else None
    title = spec.name or (path.parent.name if path.name == "suite.yaml" else path.stem)
    if isinstance(spec, StsSuite):
        rows: dict[str, int] = {}
        pairs = {part.name: _read_pairs(_locate(path, part.file, root), part, rows) for part in spec.tasks}
        return Suite(title, "sts", spec.about, list(rows), pairs, {})
    collections = {part.name: _read_collection(_locate(path, part.folder, root), part) for part in spec.tasks}
    queries = dict.fromkeys(query for collection in collections.values() for query in collection.queries)
    return Suite(title, "retrieval", spec.about, list(queries), {}, collections)


def evaluate(suite: Suite, encode: Encode) -> dict[str, Any]:
    """Score an encoder on a suite: {kind, average, tasks{name: numbers}}, all between -1 and 1.

    sts: per task `all` (one Spearman over all pairs), `mean` and `wmean` (over its subsets; by pairs); average: mean of `all`.
    retrieval: per task `ndcg_at_10`; average: their mean.
    """
    if suite.kind == "sts":
        vectors = _unit(_encode(encode, suite.texts))
        tasks = {name: _score_pairs(pairs, vectors) for name, pairs in suite.pairs.items()}
        headline = "all"
    else:
        tasks = {name: _score_collection(collection, encode) for name, collection in suite.collections.items()}
        headline = "ndcg_at_10"
    return {"kind": suite.kind, "average": float(np.mean([task[headline] for task in tasks.values()])), "tasks": tasks}


def spearman(x: Floats, y: Floats) -> float | None:
    """Spearman's rank correlation; None where it is undefined: fewer than two points, or one side constant."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(spearmanr(x, y).statistic)


def ndcg(grades: list[int], judged: list[int], k: int = 10) -> float:
    """nDCG@k with linear gain, as trec_eval's ndcg_cut: `grades` in ranked order, `judged` all grades of the query."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    gained = np.maximum(np.array(grades[:k], dtype=float), 0)
    ideal = np.sort(np.maximum(np.array(judged, dtype=float), 0))[::-1][:k]
    best = float(ideal @ discount[: len(ideal)])
    return float(gained @ discount[: len(gained)]) / best if best > 0 else 0.0


def agreement(student: Floats, teacher: Floats, lengths: Ints, pairs: int = 50_000, queries: int = 2_000, seed: int = 0) -> dict[str, Any]:
    """How far a student's vectors say what its teacher's say of the same texts; needs no labels.

    student (n, d), teacher (n, e), lengths (n,) in tokens. `spearman`: of pairwise cosines over sampled pairs; `cosine_mean`, `cosine_min`:
    of the two vectors of a text (None when d != e); `top10_overlap`: share of the teacher's ten nearest found among the student's
    ten. `by_length`: the same by tokens; pairs lie within a bucket, neighbours come from all texts.
    """
    if len(student) != len(teacher) or len(student) != len(lengths):
        raise ValueError(f"{len(student)} student vectors, {len(teacher)} teacher vectors, {len(lengths)} lengths")
    student, teacher, lengths = _unit(student), _unit(teacher), np.asarray(lengths)
    random = np.random.default_rng(seed)
    asked = np.sort(random.permutation(len(student))[:queries])
    overlap = _overlap(student, teacher, asked, 10)
    cosines = _dot(student, teacher) if student.shape[1] == teacher.shape[1] else None
    everything = np.arange(len(student))

    def numbers(rows: Ints) -> dict[str, Any]:
        i, j = _draw_pairs(rows, pairs, random)
        found = overlap[np.isin(asked, rows)]
        return {
            "texts": len(rows),
            "spearman": spearman(_dot(student[i], student[j]), _dot(teacher[i], teacher[j])),
            "cosine_mean": float(cosines[rows].mean()) if cosines is not None else None,
            "cosine_min": float(cosines[rows].min()) if cosines is not None else None,
            "top10_overlap": float(found.mean()) if len(found) else None,
        }

    buckets = {}
    for low, high in ((0, 8), (9, 16), (17, 32), (33, 64), (65, None)):
        rows = everything[(lengths >= low) & (lengths <= (high or lengths.max(initial=0)))]
        if len(rows) >= 2:
            buckets[f"{low}-{high}" if high else f"{low}+"] = numbers(rows)
    return {**numbers(everything), "pairs": min(pairs, len(student) * (len(student) - 1) // 2), "by_length": buckets}


def _score_pairs(pairs: Pairs, vectors: Floats) -> dict[str, Any]:
    cosine = _dot(vectors[pairs.first], vectors[pairs.second])
    subsets, weights = {}, {}
    for name in dict.fromkeys(pairs.subset.tolist()):
        rows = pairs.subset == name
        if len(set(pairs.gold[rows])) > 1:  # a subset whose gold is one value has no ranking to find
            subsets[name] = spearman(cosine[rows], pairs.gold[rows]) or 0.0
            weights[name] = int(rows.sum())
    values = list(subsets.values())
    return {
        "all": spearman(cosine, pairs.gold) or 0.0,
        "mean": float(np.mean(values)) if values else 0.0,
        "wmean": float(np.average(values, weights=list(weights.values()))) if values else 0.0,
        "pairs": len(pairs.gold),
        "subsets": subsets,
    }


def _score_collection(collection: Collection, encode: Encode) -> dict[str, Any]:
    """Rank the corpus for every query, a chunk at a time; only the best POOL per query are kept between chunks."""
    queries = _unit(_encode(encode, collection.queries))
    best = np.full((len(queries), 0), -np.inf, dtype=np.float32)  # (q, POOL) cosines
    rows = np.full((len(queries), 0), -1, dtype=np.int64)  # (q, POOL) their corpus rows
    ids: list[str] = []
    for names, texts in collection.chunks():
        vectors = _unit(_encode(encode, texts))
        chunk = np.arange(len(ids), len(ids) + len(names))
        ids += names
        same = {name: column for column, name in enumerate(names)} if collection.same_ids else {}
        blocks = [
            _best(best[q], rows[q], queries[q] @ vectors.T, chunk, [same.get(name) for name in collection.query_ids[q]])
            for q in (slice(start, start + CHUNK_TEXTS // 4) for start in range(0, len(queries), CHUNK_TEXTS // 4))
        ]
        best, rows = np.concatenate([block[0] for block in blocks]), np.concatenate([block[1] for block in blocks])
    values = []
    for q, judged in enumerate(collection.judged):
        ranked = sorted(((score, ids[row]) for score, row in zip(best[q].tolist(), rows[q].tolist(), strict=True)), reverse=True)
        grades = [judged.get(name, 0) for score, name in ranked if score > -np.inf]  # ties: the higher id first, as trec_eval
        values.append(ndcg(grades, list(judged.values())))
    return {"ndcg_at_10": float(np.mean(values)), "queries": len(values), "texts": len(ids)}


def _best(best: Floats, rows: Ints, scores: Floats, chunk: Ints, forbidden: list[int | None]) -> tuple[Floats, Ints]:
    """Merge a chunk's scores (q, c) into the best so far (q, p): the POOL highest, in no order."""
    for q, column in enumerate(forbidden):
        if column is not None:
            scores[q, column] = -np.inf
    scores = np.concatenate([best, scores], axis=1)
    rows = np.concatenate([rows, np.broadcast_to(chunk, (len(rows), len(chunk)))], axis=1)
    keep = np.argpartition(-scores, min(POOL, scores.shape[1]) - 1, axis=1)[:, :POOL]
    return np.take_along_axis(scores, keep, axis=1), np.take_along_axis(rows, keep, axis=1)


def _encode(encode: Encode, texts: list[str]) -> Floats:
    """Encode each distinct text once."""
    distinct = dict.fromkeys(texts)
    rows = {text: row for row, text in enumerate(distinct)}
    vectors = np.asarray(encode(list(distinct)))
    if vectors.ndim != 2 or len(vectors) != len(rows):
        raise ValueError(f"encode gave {vectors.shape} for {len(rows)} texts; (n, d) is expected")
    return vectors if len(rows) == len(texts) else vectors[[rows[text] for text in texts]]


def _unit(vectors: Floats) -> Floats:
    """Rows of length one; rows without a direction (zero, NaN) become zero, so that their cosines are 0."""
    vectors = np.nan_to_num(np.asarray(vectors, dtype=np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def _dot(x: Floats, y: Floats) -> Floats:
    products: Floats = np.einsum("nd,nd->n", x, y, dtype=np.float64)
    return products


def _draw_pairs(rows: Ints, count: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """`count` pairs of different rows; all of them, when there are no more."""
    if len(rows) * (len(rows) - 1) // 2 <= count:
        i, j = np.triu_indices(len(rows), 1)
    else:
        i = random.integers(0, len(rows), count)
        j = (i + random.integers(1, len(rows), count)) % len(rows)
    return rows[i], rows[j]


def _overlap(x: Floats, y: Floats, asked: Ints, k: int) -> Floats:
    """Share of common nearest rows of each asked row, itself left out: (len(asked),)."""
    k = min(k, len(x) - 1)
    if k < 1:
        return np.ones(len(asked))
    shares = []
    for rows in np.array_split(asked, max(1, len(asked) // 256)):
        tops = []
        for vectors in (x, y):
            scores = vectors[rows] @ vectors.T
            scores[np.arange(len(rows)), rows] = -np.inf
            tops.append(np.argpartition(-scores, k - 1, axis=1)[:, :k])
        shares += [len(set(a.tolist()) & set(b.tolist())) / k for a, b in zip(*tops, strict=True)]
    return np.array(shares)


def _clean(text: str) -> str:
    return " ".join(text.split())


def _parse(path: Path) -> StsSuite | RetrievalSuite:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a suite is a mapping, this is a {type(data).__name__}; see bench/suites/sts7/suite.yaml")
    if data.get("kind") not in _KINDS:
        raise UserError(f"{path}: kind: {unknown('kind of suite', data.get('kind', ''), _KINDS)}")
    try:
        spec = _SUITE.validate_python(data)
    except ValidationError as error:
        raise UserError(*dict.fromkeys(_line(path, problem) for problem in error.errors())) from None
    names = [part.name for part in spec.tasks]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: tasks: two have the same name ({', '.join(sorted(names))}); rename one")
    return spec


def _line(path: Path, problem: Any) -> str:
    """One pydantic error in our words."""
    loc = problem["loc"][1:]  # without the union's tag
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if problem["type"] == "extra_forbidden":
        model = _KINDS[problem["loc"][0]][len(loc) > 1]
        return f"{path}: {where}: {unknown('key', loc[-1], model.model_fields)}"
    if problem["type"] == "missing":
        return f"{path}: {where}: missing; this key is required"
    fact = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{path}: {where}: {fact}, not {problem['input']!r}"


def _locate(suite_path: Path, name: str, data: Path | None) -> Path:
    """A suite's file or folder: beside suite.yaml, else under the data folder."""
    beside = suite_path.parent / name
    if beside.exists():
        return beside
    if data is None:
        raise UserError(f"{suite_path}: {name} is not beside it; give --data DIR or set EDGEDISTILL_DATA")
    if not data.is_dir():
        raise UserError(f"{data}: no such folder; give --data DIR or set EDGEDISTILL_DATA")
    if not (data / name).exists():
        raise UserError(f"{data / name}: no such file, and {suite_path} asks for it; give --data DIR or set EDGEDISTILL_DATA")
    return data / name


def _lines(path: Path) -> Iterator[str]:
    """Lines of a text file, plain or .gz, without their ends."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="\n")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", newline="\n") as file
        ):
            for line in file:
                yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; convert it") from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: broken gzip ({error}); fetch it again") from None


def _rows(path: Path, columns: list[str], optional: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, the asked columns) of a tab-separated file with a header."""
    lines = _lines(path)
    header = next(lines, "").split("\t")
    for column in columns:
        if column not in header:
            raise UserError(f"{path}: {unknown('column', column, header)}; name the column in suite.yaml, or give another --data")
    at = {column: header.index(column) for column in [*columns, *optional] if column in header}
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        cells = line.split("\t")
        if len(cells) < len(header):
            raise UserError(f"{path}: line {number}: {len(cells)} cells, the header has {len(header)}; fix the line")
        yield number, {column: cells[i] for column, i in at.items()}


def _read_pairs(path: Path, part: StsFile, rows: dict[str, int]) -> Pairs:
    """Read a table of pairs; new texts join `rows` (text -> its number). Pairs without a score are dropped."""
    wanted = {part.subset} if isinstance(part.subset, str) else set(part.subset or ())
    column = part.subset_column or "subset"
    needed = [part.sentence1, part.sentence2, part.score] + ([column] if part.subset_column or wanted else [])
    first, second, gold, subset = [], [], [], []
    for number, cells in _rows(path, needed, [column]):
        if not cells[part.score].strip() or (wanted and cells[column] not in wanted):
            continue
        try:
            gold.append(float(cells[part.score]))
        except ValueError:
            raise UserError(f"{path}: line {number}: score {cells[part.score]!r} is not a number; fix the line") from None
        first.append(rows.setdefault(_clean(cells[part.sentence1]), len(rows)))
        second.append(rows.setdefault(_clean(cells[part.sentence2]), len(rows)))
        subset.append(cells.get(column, ""))
    missing = sorted(wanted - set(subset))
    if missing or not gold:
        fact = f"no pairs of subset {', '.join(missing)}" if missing else "no pair has a score"
        raise UserError(f"{path}: {fact}; check the suite, or give another --data")
    return Pairs(np.array(first, np.int64), np.array(second, np.int64), np.array(gold), np.array(subset, dtype=np.str_))


def _either(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: no {' or '.join(names)}; give --data DIR or set EDGEDISTILL_DATA")


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: line {number}: not JSON ({error.msg}); fix the line") from None
        if not isinstance(row, dict) or "_id" not in row:
            raise UserError(f"{path}: line {number}: no `_id`; BEIR's rows have _id, title, text")
        yield row


def _read_collection(folder: Path, part: RetrievalFolder) -> Collection:
    corpus = _either(folder, "corpus.jsonl", "corpus.jsonl.gz")
    judged: dict[str, dict[str, int]] = {}
    qrels = _either(folder, "qrels.tsv", "qrels.tsv.gz", "qrels/test.tsv")
    for number, cells in _rows(qrels, ["query-id", "corpus-id", "score"], []):
        try:
            judged.setdefault(cells["query-id"], {})[cells["corpus-id"]] = int(cells["score"])
        except ValueError:
            raise UserError(f"{qrels}: line {number}: grade {cells['score']!r} is not a whole number; fix the line") from None
    asked = _either(folder, "queries.jsonl", "queries.jsonl.gz")
    queries = {str(row["_id"]): _clean(row.get("text") or "") for row in _jsonl(asked)}
    queries = {name: text for name, text in queries.items() if name in judged}
    if not queries or len(queries) < len(judged):
        lost = next((name for name in judged if name not in queries), None)
        _no_query(qrels, lost)
    return Collection(corpus, list(queries), list(queries.values()), [judged[name] for name in queries], part.same_ids)


def _no_query(qrels: Path, name: str | None) -> NoReturn:
    fact = f"query {name!r} is not in queries.jsonl" if name is not None else "no judgements"
    raise UserError(f"{qrels}: {fact}; take both from the same release")
