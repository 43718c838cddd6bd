"""suite.yaml: which families of suites there are, and the checked description of one suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation.suites import bitext, labelled_task, pair_classification, retrieval, sts, transfer
from edgedistill.evaluation.suites.suite_files import Find, Part

Description = (
    sts.StsSuite
    | retrieval.RetrievalSuite
    | bitext.BitextSuite
    | transfer.TransferSuite
    | pair_classification.PairClassificationSuite
    | labelled_task.TaskSuite
)


class Family(NamedTuple):
    """One kind of suite: the models of its suite.yaml, and how its files are read and scored."""

    suite: type[Part]
    task: type[Part]
    read: Callable[[Any, Find], tuple[list[str], dict[str, Any]]]
    score: Callable[[list[str], dict[str, Any], Any], dict[str, dict[str, Any]]]


FAMILIES = {
    "sts": Family(sts.StsSuite, sts.StsFile, sts.read, sts.score),
    "retrieval": Family(retrieval.RetrievalSuite, retrieval.RetrievalFolder, retrieval.read, retrieval.score),
    "bitext": Family(bitext.BitextSuite, bitext.BitextFile, bitext.read, bitext.score),
    "transfer": Family(transfer.TransferSuite, transfer.TransferFolder, transfer.read, transfer.score),
    "pair_classification": Family(
        pair_classification.PairClassificationSuite,
        pair_classification.PairTables,
        pair_classification.read,
        pair_classification.score,
    ),
    "task": Family(labelled_task.TaskSuite, labelled_task.TaskTable, labelled_task.read, labelled_task.score),
}
_DESCRIPTION: TypeAdapter[Description] = TypeAdapter(Annotated[Description, Field(discriminator="kind")])


def parse(path: Path) -> Description:
    """Read and check a suite.yaml, but none of the files it names. Raises UserError with all its problems."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UserError(
            f"{path}: a suite is a mapping, this is a {type(data).__name__}; see bench/suites/sts7/suite.yaml"
        )
    if data.get("kind") not in FAMILIES:
        raise UserError(f"{path}: kind: {unknown_name('kind of suite', data.get('kind', ''), FAMILIES)}")
    try:
        description = _DESCRIPTION.validate_python(data)
    except ValidationError as error:
        raise UserError(*dict.fromkeys(_problem(path, each) for each in error.errors())) from None
    names = [part.name for part in description.tasks]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: tasks: two have the same name ({', '.join(sorted(names))}); rename one")
    return description


def _problem(path: Path, error: Any) -> str:
    """One pydantic error as *place: fact; way out*."""
    loc = error["loc"][1:]  # without the union's tag
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if error["type"] == "extra_forbidden":
        family = FAMILIES[error["loc"][0]]
        model = family.task if len(loc) > 1 else family.suite
        return f"{path}: {where}: {unknown_name('key', loc[-1], model.model_fields)}"
    if error["type"] == "missing":
        return f"{path}: {where}: missing; this key is required"
    fact = error["msg"].removeprefix("Value error, ")
    got = "" if error["type"] == "value_error" else f", not {error['input']!r}"
    return f"{path}: {where}: {fact[0].lower()}{fact[1:]}{got}"
