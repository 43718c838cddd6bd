"""Tasks of mteb by name, scored by mteb's own evaluator (extra `mteb`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edgedistill.errors import UserError, quote, require
from edgedistill.evaluation.suites.cosines import Encoder, Floats
from edgedistill.evaluation.suites.suite_files import Family, Find, Rows, Task, add_texts

SAMPLED = 1_000  # rows of each table of a task whose texts are the suite's, which are timed
COMMAND = "edgedistill bench --suite mteb:TASK"


class Model:
    """An encoder as mteb calls it: by the roles of texts, with its own prompts alone."""

    def __init__(self, encoder: Encoder, mteb: Any) -> None:
        self.encoder, self.mteb_model_meta = encoder, mteb.models.ModelMeta.create_empty()
        known = mteb.similarity_functions
        self.similarity, self.similarity_pairwise = known.cos_sim, known.pairwise_cos_sim

    def encode(self, inputs: Iterable[Any], *, prompt_type: Any = None, **_: Any) -> Floats:
        """Embed the texts of all batches: (n, d)."""
        embed = getattr(self.encoder, getattr(prompt_type, "value", "text"))
        return embed([text for batch in inputs for text in batch["text"]])


def read(part: Task, find: Find, rows: Rows) -> Any:
    """Open a task and its data: in the folder mteb/NAME next to suite.yaml or under --data, as its repository
    on the hub has them, else from the hub. Raises UserError for a task that mteb does not know or that has
    more than texts, and where its data cannot be loaded."""
    place, mteb = f"--suite mteb:{part.name}", require("mteb", COMMAND, "mteb")
    try:
        task = mteb.get_task(part.name)
    except KeyError as error:
        raise UserError(f"{place}: {error.args[0].removeprefix('KeyError: ')}") from None
    if task.metadata.modalities != ["text"]:
        raise UserError(f"{place}: has more than texts; choose another task")
    data = task.metadata.dataset
    with contextlib.suppress(UserError):  # not there: the hub has it
        data = {**data, "path": str(find(f"mteb/{part.name}"))}
    task.metadata = task.metadata.model_copy(update={"dataset": data})
    try:
        task.load_data()
    except (OSError, ValueError, require("datasets.exceptions", COMMAND, "mteb").DatasetsError) as error:
        way_out = f"put that repository's files into mteb/{part.name} below --data"
        raise UserError(f"{place}: {data['path']} cannot be loaded: {quote(str(error))}; {way_out}") from None
    add_texts(_texts(task.dataset), rows)
    return task


def _texts(data: Any) -> Iterator[str]:
    """The texts of every table of a task's data."""
    if isinstance(data, Mapping):
        for part in data.values():
            yield from _texts(part)
    elif hasattr(data, "column_names"):
        for name, cells in data[:SAMPLED].items():
            if not name.endswith("id"):
                yield from (cell for cell in cells if isinstance(cell, str))


def score(task: Any, encoder: Encoder) -> dict[str, Any]:
    """Return `main_score`, mteb's mean over the task's splits and languages, and the `measure` that it is."""
    mteb = require("mteb", COMMAND, "mteb")
    found = mteb.evaluate(Model(encoder, mteb), task, cache=None, co2_tracker=False, show_progress_bar=False)
    return {"main_score": found.task_results[0].get_score(), "measure": task.metadata.main_score}


FAMILY = Family(Task, read, score, "main_score", "mteb's main score × 100", roles=True)
