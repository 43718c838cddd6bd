"""Tasks of mteb by name, scored by mteb's own evaluator (extra `mteb`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from edgedistill.errors import UserError, quote, require
from edgedistill.evaluation.suites.cosines import Encoder, Floats, Measures
from edgedistill.evaluation.suites.suite_files import Find, Task, TaskData

SAMPLED = 1_000  # rows of each table of a task whose texts are the suite's, which are timed
COMMAND = "edgedistill bench --suite mteb:TASK"


class Model:
    """An encoder as mteb calls it: by the roles of texts, with its own prompts alone."""

    def __init__(self, encoder: Encoder, mteb: Any) -> None:
        self.encoder = encoder
        self.mteb_model_meta = mteb.models.ModelMeta.create_empty()
        known = mteb.similarity_functions
        self.similarity = known.cos_sim
        self.similarity_pairwise = known.pairwise_cos_sim

    def encode(self, inputs: Iterable[Any], *, prompt_type: Any = None, **_: Any) -> Floats:
        """Embed the texts of all batches: (n, d)."""
        embed = getattr(self.encoder, getattr(prompt_type, "value", "text"))
        return embed([text for batch in inputs for text in batch["text"]])


class MtebTask(Task):
    """A task of mteb by its name."""

    averaged: ClassVar[str] = "main_score"
    title: ClassVar[str] = "mteb's main score × 100"

    def read(self, find: Find) -> MtebData:
        """Open a task and its data: in the folder mteb/NAME next to suite.yaml or under --data, as its
        repository on the hub has them, else from the hub. Raises UserError for a task that mteb does not know
        or that has more than texts, and where its data cannot be loaded."""
        place = f"--suite mteb:{self.name}"
        mteb = require("mteb", COMMAND, "mteb")
        try:
            task = mteb.get_task(self.name)
        except KeyError as error:
            raise UserError(f"{place}: {error.args[0].removeprefix('KeyError: ')}") from None
        if task.metadata.modalities != ["text"]:
            raise UserError(f"{place}: has more than texts; choose another task")
        data = task.metadata.dataset
        with contextlib.suppress(UserError):  # not there: the hub has it
            data = {**data, "path": str(find(f"mteb/{self.name}"))}
        task.metadata = task.metadata.model_copy(update={"dataset": data})
        failures = OSError, ValueError, require("datasets.exceptions", COMMAND, "mteb").DatasetsError
        try:
            task.load_data()
        except failures as error:
            raise UserError(
                f"{place}: {data['path']} cannot be loaded: {quote(str(error))}; put that repository's "
                f"files into mteb/{self.name} below --data"
            ) from None
        return MtebData(task)


@dataclass(frozen=True)
class MtebData(TaskData):
    """A task of mteb with its data."""

    task: Any

    @cached_property
    def texts(self) -> list[str]:
        """Of the first SAMPLED rows of each table."""
        return list(_texts(self.task.dataset))

    def score(self, encoder: Encoder) -> Measures:
        """`main_score`, mteb's mean over the task's splits and languages, and the `measure` that it is."""
        mteb = require("mteb", COMMAND, "mteb")
        options = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
        result = mteb.evaluate(Model(encoder, mteb), self.task, **options)
        score = result.task_results[0].get_score()
        return {"main_score": score, "measure": self.task.metadata.main_score}


def _texts(data: Any) -> Iterator[str]:
    """The texts of every table of a task's data."""
    if isinstance(data, Mapping):
        for part in data.values():
            yield from _texts(part)
    elif hasattr(data, "column_names"):
        for name, cells in data[:SAMPLED].items():
            if not name.endswith("id"):
                yield from (cell for cell in cells if isinstance(cell, str))
