"""What a finished student was trained on before it goes on learning: for run.json and the model card."""

from __future__ import annotations

from typing import Any

from edgedistill import run


def record(source: run.Run) -> list[dict[str, Any]]:
    """{recipe, teachers, sources} of each training of a finished student, the first one first: its own runs may have continued others.

    teachers: {name, revision, licence}; sources: {name, texts, licence} of each text file of the corpus. A licence may be None.
    """
    spec, info = source.recipe, source.info
    named = {"name": spec.teacher.embeddings or spec.teacher.model, "revision": spec.teacher.revision, "licence": spec.teacher.licence}
    licences = getattr(spec.corpus, "licences", {})
    sources = (info.get("corpus") or {}).get("sources", [])
    own = {
        "recipe": spec.name,
        "teachers": [{key: each.get(key) for key in named} for each in info.get("teachers", [named])],
        "sources": [{"name": each["name"], "texts": each["texts"], "licence": licences.get(each["name"])} for each in sources],
    }
    return [*info.get("earlier", []), own]
