"""The cache of a recipe, filled ahead of training: by this process, or by one of several that share the
cache's folder. All make shards of embeddings and of tokens; `train` finds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgedistill import files, recipe
from edgedistill.data.corpus import ALL, CorpusPass, Share
from edgedistill.data.token_cache import TokenPass
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.session import Session
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.encoder import TeacherEncoder, device_of, flush_denormals
from edgedistill.training.initial_student import student_tokenizer
from edgedistill.training.inputs import batches
from edgedistill.training.inputs.stage_targets import embedded
from edgedistill.training.open_recipe import Opened, Sources, open_recipe, open_sources


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
    parquet: Path | None = None,
) -> Json:
    """Embed a share of what a recipe's teachers are to embed, and tokenize it for the student.

    Then the cache is written to the new folder `parquet`, where one is given: each pass to a folder in it,
    NAME, NAME-2. Returns {"passes": [{name, folder, texts, shards, done}]}. Raises UserError where no model
    embeds any text.
    """
    whole = _opened(spec, session)
    if not whole:
        raise UserError(
            f"{spec.name}: no teacher model embeds texts for it; train it, what it needs is not in this cache"
        )
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


def _opened(spec: recipe.Recipe, session: Session) -> list[CorpusPass]:
    """All passes of a recipe, each once, as `train` makes them."""
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
    return [*passes(sources, session), *tokenizing]
