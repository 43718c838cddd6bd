"""The cache of a recipe, filled ahead of training: by this process, by one of several that share the cache's
folder, or by a cluster of Ray. All make shards of embeddings and of tokens; `train` finds them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from edgedistill import files, recipe
from edgedistill.data.corpus import ALL, CorpusPass, Share
from edgedistill.data.token_cache import TokenPass
from edgedistill.errors import UserError, require
from edgedistill.files import Json
from edgedistill.session import Session, progress_bar
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.encoder import TeacherEncoder, device_of, flush_denormals
from edgedistill.training.initial_student import student_tokenizer
from edgedistill.training.inputs import batches
from edgedistill.training.inputs.stage_targets import embedded
from edgedistill.training.open_recipe import Opened, Sources, open_recipe, open_sources

ATTEMPTS = 10  # at a shard, by workers that died


def passes(sources: Sources, session: Session) -> list[TeacherPass]:
    """The passes of teacher models over texts that the distillation stages need, each once. An assistant's
    embedding layer, which costs next to nothing, and files of embeddings are left to `train`."""
    spec = sources.spec
    texts = sources.texts
    if texts is None:
        return []
    sides = embedded(spec, texts, [stage.rows for stage in sources.stages])
    needed = (side.pass_of(sources.models, session) for side in sides if side.match.layer == "output")
    return list({one.folder: one for one in needed if isinstance(one.teacher, TeacherEncoder)}.values())


def token_passes(opened: Opened, session: Session) -> list[TokenPass]:
    """What the student reads as tokens: the texts of the recipe, then the tuples of its stages."""
    if opened.texts is None or not opened.spec.student.trained:
        return []
    tokenizer = opened.student.limited_tokenizer.limited_to(opened.spec.distilling)
    whole = [opened.texts, *(stage.rows for stage in opened.stages)]
    tokenizing = (work for rows in whole for work in batches.token_passes(rows, tokenizer, session))
    return list({work.folder: work for work in tokenizing}.values())


def fill(
    spec: recipe.Recipe,
    session: Session,
    share: Share = ALL,
    engine: str = "local",
    parquet: Path | None = None,
) -> Json:
    """Embed a share of what a recipe's teachers are to embed and tokenize it for the student, in this
    process, or with `engine` ray by a worker for each GPU, or else processor, of a cluster.

    Then the cache is written to the new folder `parquet`, where one is given: each pass to a folder in it,
    NAME, NAME-2. Returns {"passes": [{name, folder, texts, shards, done}]}. Raises UserError where no model
    embeds any text.
    """
    session, whole = _opened(spec, session)
    if not whole:
        raise UserError(
            f"{spec.name}: no teacher model embeds texts for it; train it, what it needs is not in this cache"
        )
    if engine == "ray":
        _on_ray(spec, session, whole, share)
    else:
        for work in whole:
            work.run(share)
    if parquet is not None:
        with files.new_folder(parquet) as folder:
            embedded = [work for work in whole if isinstance(work, TeacherPass)]
            for number, work in enumerate(embedded):
                same = sum(other.name == work.name for other in embedded[:number])
                work.write_parquet(folder / (f"{work.name}-{same + 1}" if same else work.name))
    entries = [
        {
            "name": work.name,
            "folder": str(work.folder),
            "texts": len(work.corpus),
            "shards": work.shards,
            "done": len(work.made),
        }
        for work in whole
    ]
    return {"recipe": spec.name, "passes": entries}


def _opened(spec: recipe.Recipe, session: Session) -> tuple[Session, list[CorpusPass]]:
    """What a process works with, as `train` does, and all passes of a recipe, each once."""
    flush_denormals()
    session = replace(session, device=device_of(session.device))
    student = spec.student
    tokenizing = []
    reads = [field for field in student_tokenizer.OF_THE_CORPUS if getattr(student, field, None) is not None]
    if reads:
        session.log(f"student.{reads[0]}: the tokenizer depends on the whole corpus; train tokenizes it")
        sources = open_sources(spec, session)
    else:
        sources = open_recipe(spec, session)
        tokenizing = token_passes(sources, session)
    return session, [*passes(sources, session), *tokenizing]


class Worker:
    """A process of a cluster that holds a recipe's teachers and its tokenizer."""

    def __init__(self, spec: recipe.Recipe, session: Session, place: Path) -> None:
        """Relative names in the recipe start from `place`."""
        os.chdir(place)
        self.passes = _opened(spec, session)[1]

    def make(self, number: int, shard: int) -> int:
        """Make a shard of a pass; returns how many texts it has."""
        return self.passes[number].make(shard)


def _on_ray(spec: recipe.Recipe, session: Session, whole: list[CorpusPass], share: Share) -> None:
    """Make shards by actors that hold the models, in the cluster that RAY_ADDRESS names, or a local one.

    A killed actor is started again with the shard it was at. Raises UserError where that does not help, and
    what the workers raise.
    """
    ray = require("ray", "edgedistill cache --engine ray", "ray")
    tasks = [(number, shard) for number, work in enumerate(whole) for shard in work.lacking(share)]
    if not tasks:
        return
    ray.init(log_to_driver=False, ignore_reinit_error=True)
    unit = "GPU" if session.device == "cuda" else "CPU"
    needs = {"num_cpus": 1, "num_gpus": int(unit == "GPU")}
    actor = ray.remote(max_restarts=-1, max_task_retries=ATTEMPTS, **needs)(Worker)
    there = replace(session, cache_folder=session.cache.absolute(), progress=False)
    count = max(1, int(ray.cluster_resources().get(unit, 1)))
    try:
        held = [actor.remote(spec, there, Path.cwd()) for _ in range(min(count, len(tasks)))]
        pool = ray.util.ActorPool(held)
        texts = sum(len(work.corpus) for work in whole)
        with progress_bar(texts, session.progress, "ray") as advance:
            for done in pool.map_unordered(lambda worker, task: worker.make.remote(*task), tasks):
                advance(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from None
    except ray.exceptions.RayActorError as error:
        raise UserError(
            f"cache: workers died {ATTEMPTS} times at one shard ({str(error).splitlines()[0]}); "
            "see Ray's logs, and give each worker more memory"
        ) from None
    finally:
        ray.shutdown()
