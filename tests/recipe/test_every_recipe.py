"""Every recipe that ships and every base of a reproduction, made small: four steps a stage, exported and
measured; one of each kind of student checked and timed."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import baselines
import numpy as np
import pytest
import yaml

from edgedistill import files, recipe
from edgedistill.evaluation import bench, scoring, speed
from edgedistill.export import bundle_writer
from edgedistill.planning import cost
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.training import train
from tests.conftest import added_kinds, make_encoder, make_tokenizer, measure_briefly, sentences
from tests.faults.commands import PROCESSES, contents, of_a_run
from tests.faults.record import record
from tests.vocabulary.test_trim_tokenizer import unigram

PLAN = speed.MeasurementPlan(queries=2, warmups=1, rounds=1, seconds=0.0, resamples=2)
LANGUAGES = ("ar", "de", "es", "fr", "it", "ja", "nl", "pl", "pt", "ru", "tr", "zh")
BASES = {path.stem: path for path in (Path(baselines.__file__).parent / "bases").glob("*.yaml")}
RECIPES = files.shipped("recipe") | BASES
FOLDERS = "code|unlabeled|multilingual|pairs|parallel"
NAMED = {  # `limits` of unlabeled/*.txt.gz have no folder
    path if "/" in path else f"unlabeled/{path}"
    for each in RECIPES.values()
    for path in re.findall(
        rf"\b(?:{FOLDERS})/[\w.-]+\.gz|(?<![\w./-])\w+\.txt\.gz", each.read_text(encoding="utf-8")
    )
}
STEPS = 4  # of a stage
WIDTH = 32  # of the tiny teacher, in place of 384
DIMS = {384: WIDTH, 192: 16, 128: 16, 96: 12, 64: 8, 32: 4}
SMALL = {
    "width": 16,
    "heads": 2,
    "hidden": 8,
    "intermediate": 24,
    "bottleneck": 8,
    "pq_bytes": 8,
    "vocabulary_size": 200,
    "sample": 200,
    "max_positions": 32,
    "rank": 24,
    "min_count": 1,
    "queue": 16,
    "steps": STEPS,
    "batch": 8,
    "bucket": 2,
    "max_tokens": 32,
    "every": STEPS,
    "held_out": 8,
    "limit": 200,
    "limit_per_file": 60,
    "documentation_texts": 40,
    "dev_rows": 20,
}


def quiet(line: str):
    pass


class Tiny:
    """A folder with models, data under the names that recipes use, and every run made so far under
    `runs/`."""

    def __init__(self, folder: Path):
        self.folder, self.data = folder, folder / "data"
        self.measured = set[tuple[str, str]]()  # (suite, kind of student) of what has been through bench
        self.exported = set[str]()  # their sections of student, targets and teacher
        self.known: dict[str, str] = {}  # what was trained -> the recipe that did it first
        _write_data(self.data)
        self.teacher = _model(folder / "teacher", make_tokenizer(), chain=True)
        self.plain = _model(folder / "plain", make_tokenizer())
        self.narrow = _model(folder / "narrow", make_tokenizer(), width=16)
        self.multilingual = _model(folder / "multilingual", unigram(), chain=True)

    def spec(self, name: str) -> recipe.Recipe:
        """The recipe with small numbers, files in place of the hub's, and the tiny models."""
        made = _small(yaml.safe_load(RECIPES[name].read_text(encoding="utf-8")))
        made.pop("requirements", None)
        for side in ("teacher", "assistant"):
            model = made.get(side, {}).get("model", "runs/")
            if not model.startswith("runs/"):
                where = self.multilingual if "multilingual" in model else self.teacher
                if "pooling" in made[side]:
                    where = self.plain
                made[side] |= {"model": str(where)}
                made[side].pop("dtype", None)  # int8 loses too much of a tiny model
        for part in made.get("targets", {}).get("parts", []):
            if "/" in part.get("teacher", {}).get("model", ""):
                part["teacher"] |= {"model": str(self.plain), "pooling": "mean"}
                part["teacher"].pop("dtype", None)
        reduce = made.get("targets", {}).get("reduce", {})
        if "centre" in reduce:  # less their mean, a tiny model's embeddings are what 8 bits lose
            reduce["centre"] = False
        student = made["student"]
        finished = student.get("kind", "finished") == "finished"  # its weights are another recipe's run
        if student.get("weights") in files.shipped("bundle"):
            student["weights"] = f"runs/{student['weights']}"
        for key in () if finished else ("weights", "tokenizer"):
            if "/" in student.get(key, "") or student.get(key, "").startswith("packaged:"):
                student[key] = str(self.multilingual if "xlm" in student[key] else self.plain)
        if isinstance(student.get("layers"), int):
            student["layers"] = min(student["layers"], 6)
        if isinstance(student.get("layers"), list):
            student["layers"] = sorted({min(layer, 5) for layer in student["layers"]})
        if (
            student.get("head", "none") == "none"
            and student.get("weights") == str(self.plain)
            and "dims" in made.get("targets", {})
        ):
            student["weights"] = str(self.narrow)  # gives vectors as wide as the targets
        if student.get("kind") == "static" and "head" not in student:
            student["width"] = WIDTH  # without a head it is as wide as the teacher
        for stage in made.get("stages", []):
            stage.pop("epochs", None)
            stage["steps"] = STEPS
            scores = stage.get("rows", {}).get("scores", {})
            for teacher in scores.get("teachers", []):
                teacher["model"] = str(self.multilingual)
                teacher.pop("dtype")
        return recipe.parse(_without_revisions(made), name)

    def made(self, name: str) -> Path:
        """The run of a recipe, and before it those of the recipes that it names; the same work is done
        once."""
        out = self.folder / "runs" / name
        if out.exists():
            return out
        spec = self.spec(name)
        for other in _runs_named(spec):
            self.made(Path(other).name)
        plain = json.dumps(spec.model_dump(mode="json", exclude={"name", "about"}), sort_keys=True)
        key = re.sub(r"runs/[\w-]+", lambda found: (self.folder / found[0]).resolve().name, plain)
        if key in self.known:
            out.symlink_to(self.known[key])
        else:
            train.train(spec, out, Session(data=self.data, log=quiet))
            self.known[key] = name
        return out


def _small(node: Any, key: str = "") -> Any:
    """The same tree with small numbers, and files in place of the hub's data sets."""
    if isinstance(node, dict):
        node = {name: _small(value, name) for name, value in node.items()}
        return _from_files(node) if "dataset" in node else node
    if key == "dims":
        return [DIMS[each] for each in node] if isinstance(node, list) else DIMS[node]
    if key == "limits" or isinstance(node, bool | str) or node is None:
        return node
    if isinstance(node, list):
        return [_small(each) for each in node][: 2 if key == "learning_rates" else None]
    if key == "texts":  # how many paragraphs
        return 10
    return SMALL.get(key, node)


def _from_files(hub: dict[str, Any]) -> dict[str, Any]:
    """A hub data set -> a file with the same columns."""
    kept = {name: hub[name] for name in ("name", "held_out", "limit", "limit_per_file") if name in hub}
    if "languages" in hub:
        source, target = hub["languages"]
        kept |= {"languages": hub["languages"]}
        return {**kept, "files": [f"parallel/wmt.{source}-{target}.tsv.gz"], "columns": [source, target]}
    if hub.get("config") == "triplet":
        return {**kept, "files": ["nli/triples.tsv.gz"], "columns": ["anchor", "entailment", "contradiction"]}
    if "dev" in hub:
        task = "sst2" if len(hub["columns"]) == 1 else "mrpc"
        return {
            **{name: f"transfer/{task}/{name}.tsv.gz" for name in ("dev", "test")},
            "files": [f"transfer/{task}/train.tsv.gz"],
            "columns": ["sentence"] if task == "sst2" else ["sentence1", "sentence2"],
            "label": "label",
        }
    return {**kept, "files": ["unlabeled/*.txt.gz"]}


def _without_revisions(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _without_revisions(value) for name, value in node.items() if name != "revision"}
    return [_without_revisions(each) for each in node] if isinstance(node, list) else node


def _runs_named(spec: recipe.Recipe) -> Iterator[str]:
    """The runs that a recipe starts from or learns from."""
    last = spec.finetuning
    named = [
        spec.assistant.model if spec.assistant else None,
        last.teacher.run if last and last.teacher else None,
        spec.student.weights if isinstance(spec.student, recipe.Finished) else None,
    ]
    yield from (name for name in named if name is not None and name.startswith("runs/"))


def _model(folder: Path, words: Any, chain: bool = False, width: int = WIDTH) -> Path:
    """An encoder of six layers."""
    kind = "xlm-roberta" if words.pad_token == "<pad>" else "bert"
    sizes = {"hidden_size": width, "num_hidden_layers": 6, "intermediate_size": 2 * width}
    return make_encoder(folder, words, kind, chain, **sizes)


def _table(path: Path, columns: dict[str, list[str]]):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ["\t".join(columns), *("\t".join(row) for row in zip(*columns.values(), strict=True))]
    path.write_bytes(gzip.compress("\n".join(rows).encode(), 1, mtime=0))


def _write_data(data: Path):
    """A little of everything that recipes read, all from the same distinct sentences, so that no text leaks
    into another file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pool = iter(sentences(7000, seed=5))

    def take(count: int) -> list[str]:
        return [next(pool) for _ in range(count)]

    for path in sorted(NAMED):
        file = data / path
        if path.endswith(".txt.gz"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(
                gzip.compress("\n".join(take(40 if "unlabeled" in path else 8)).encode(), 1, mtime=0)
            )
        elif path.startswith("pairs/"):
            _table(file, {"query": take(8), "text": take(8)})
        else:
            some, language = take(12), path.split(".en-")[1].split(".")[0]
            _table(file, {"en": some, language: [f"{text[::-1]} {language}" for text in some]})
    (data / "own.txt").write_text("\n".join(take(240)), encoding="utf-8")
    texts = take(120)
    vectors = np.random.default_rng(0).standard_normal((len(texts), WIDTH)).astype(np.float32)
    pq.write_table(pa.table({"text": texts, "embedding": list(vectors)}), data / "closed.parquet")
    _table(
        data / "nli/triples.tsv.gz", {name: take(60) for name in ("anchor", "entailment", "contradiction")}
    )
    for language in LANGUAGES:
        some = take(40)
        _table(
            data / f"parallel/wmt.en-{language}.tsv.gz",
            {"en": some, language: [f"{text[::-1]} {language}" for text in some]},
        )
    scores = [str(number % 6) for number in range(12)]
    first, second = take(12), take(12)
    for name in ("stsb.dev", "stsb.test"):
        _table(data / f"sts/{name}.tsv.gz", {"sentence1": first, "sentence2": second, "score": scores})
    for language in ("en", *LANGUAGES):
        translated = [
            [f"{text[::-1]} {language}" if language != "en" else text for text in side]
            for side in (first, second)
        ]
        for split in ("dev", "test"):
            columns = {"sentence1": translated[0], "sentence2": translated[1], "score": scores}
            _table(data / f"stsb_multi_mt/stsb_mt.{language}.{split}.tsv.gz", columns)
    for path in ("sts17/sts17.en-en.test", "bitext_eval/tatoeba.de-en"):
        _table(data / f"{path}.tsv.gz", {"sentence1": take(4), "sentence2": take(4)})
    for task, sides in {
        "sst2": ["sentence"],
        "mrpc": ["sentence1", "sentence2"],
        "qqp": ["sentence1", "sentence2"],
    }.items():
        for split in ("train", "dev", "test"):
            _table(
                data / f"transfer/{task}/{split}.tsv.gz",
                {**{side: take(60) for side in sides}, "label": ["0", "1"] * 30},
            )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    folder = tmp_path_factory.mktemp("tiny")
    before, at = os.environ.get("EDGEDISTILL_CACHE"), Path.cwd()
    os.environ["EDGEDISTILL_CACHE"] = str(folder / "cache")
    measure_briefly()
    os.chdir(folder)  # where `runs/NAME` of a recipe lies
    with added_kinds(*baselines.SECTIONS):
        yield Tiny(folder)
    os.chdir(at)
    os.environ.pop("EDGEDISTILL_CACHE") if before is None else os.environ.update(EDGEDISTILL_CACHE=before)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_whole_way(tiny: Tiny, name: str):
    spec = tiny.spec(name)
    out = tiny.made(name)
    record = files.read_json(out / "run.json")
    assert [stage["steps"] for stage in record["stages"]] == [
        STEPS for stage in spec.stages for _ in getattr(stage, "learning_rates", None) or [1]
    ]
    if out.is_symlink():
        return  # the same work as another recipe's, small as its numbers are now; it went on from here
    columns = spec.finetuning and spec.finetuning.rows.columns
    student = f"{spec.model_dump_json(include={'student', 'targets', 'teacher'})} {columns}"
    if student in tiny.exported:  # some steps on other texts change no graph
        return
    tiny.exported.add(student)
    folder = tiny.folder / "exported" / name
    # a whitened direction of a tiny teacher is noise, which eight bits do not keep
    bundle_writer.export(out, ["fp32" if spec.student.kind == "teacher" else "w8"], folder, quiet)
    suite = "task" if spec.finetuning is not None else "sts-dev"
    kind = (suite, spec.student.kind)
    if kind in tiny.measured:  # its latency and cost are no different for the next of its kind
        opened: Any = bundle.load(folder)
        asked = (
            scoring.task_suite(opened.manifest, "", tiny.data)
            if suite == "task"
            else scoring.suite(suite, tiny.data)
        )
        found = scoring.evaluate(asked, opened.classify if suite == "task" else opened.encode)
    else:
        tiny.measured.add(kind)
        expected = cost.costs([spec], Session(data=tiny.data, log=quiet))[0]
        assert record["parameters"] == expected["parameters"]
        [report] = bench.bench(
            [str(folder)], [suite], Session(data=tiny.data, log=quiet, threads=1), plan=PLAN
        )["reports"]
        assert report["single"]["p50_ms"] > 0
        found = report["quality"][suite]
    assert np.isfinite(found["average"])


def _again(name: str, folder: Path, cache: Path):
    """Train what a run records and export it, in a process of its own."""
    os.chdir(folder)
    os.environ["EDGEDISTILL_CACHE"] = str(cache)
    out = folder / "again" / name
    train.train(recipe.read_file(folder / "runs" / name / "recipe.yaml"), out, Session(data=folder / "data"))
    bundle_writer.export(out, ["fp32"], folder / "again-bundles" / name, quiet)


@pytest.mark.slow
def test_the_same_bytes_in_another_process(tiny: Tiny):
    """Of every run and bundle, from an empty cache, with another seed for Python's hashes."""
    tried, differ = 0, list[str]()
    for name in sorted(files.shipped("recipe")):
        out = tiny.made(name)
        if out.is_symlink():  # trained as that of another name
            continue
        process = PROCESSES.Process(target=_again, args=(name, tiny.folder, tiny.folder / "second-cache"))
        process.start()
        process.join()
        assert process.exitcode == 0, name
        bundle_writer.export(out, ["fp32"], tiny.folder / "first-bundles" / name, quiet)
        tried += 1
        runs = [of_a_run(tiny.folder / each / name) for each in ("runs", "again")]
        timed = ("README.md", "manifest.json")  # both name when the run was made
        bundles = [contents(tiny.folder / f"{each}-bundles" / name, timed) for each in ("first", "again")]
        if runs[0] != runs[1] or bundles[0] != bundles[1]:
            differ.append(name)
        record("determinism", "recipes that ship, trained twice", tried=tried, wrong=len(differ))
    assert not differ
    assert tried > 20


def test_every_file_that_a_recipe_names_has_its_source_and_licence():
    page = (files.shipped("recipe")["nano"].parents[1] / "DATA.md").read_text(encoding="utf-8")
    names = {re.sub(r"multilingual/\w+\.|.*/", "", path).split(".")[0] for path in NAMED}
    assert {name for name in names if f"`{name}`" not in page} == set() != names
