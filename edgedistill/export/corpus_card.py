"""What a model card says of corpora: their text files with the licence of each, and what a student was trained on before it went on."""

from __future__ import annotations

from typing import Any

from edgedistill import recipe
from edgedistill.data.corpus import ADDED, DOCUMENTATION, PARAGRAPHS, PASSAGES
from edgedistill.export import teacher_card

MOST_FILES = 20  # more files without licences are one row
# Names of sources that records keep, as readers see them.
SHOWN = {PARAGRAPHS: "paragraphs joined from the lines above", PASSAGES: "sentences of the texts above, and runs of them"}
LICENCES = {**dict.fromkeys(SHOWN, "those of the files above"), DOCUMENTATION: "PSF-2.0"}


def sources(manifest: dict[str, Any]) -> str:
    """A row for each text file of the corpus and for what was added to them, where the recipe names licences or adds texts."""
    found = (manifest["run"].get("corpus") or {}).get("sources", [])
    licences = (manifest["recipe"].get("corpus") or {}).get("licences") or {}
    own, added = [each for each in found if each["name"] not in ADDED], [each for each in found if each["name"] in ADDED]
    triples = recipe.triples_sources(manifest["recipe"].get("stages", []))
    if not licences and not added and not triples:
        return ""
    if not licences and len(own) > MOST_FILES:
        own = [{"name": f"{len(own):,} files", "texts": sum(map(_texts, own))}]
    return _table([{**each, "licence": licences.get(each["name"])} for each in own + added], triples)


def earlier(manifest: dict[str, Any]) -> str:
    """For each training before the last one: its recipe, a row for each of its teachers and for each text file of its corpus."""
    trainings = manifest["run"].get("earlier", [])
    parts = ["### Earlier training", "The student had been trained before; what it learned there is part of it."] if trainings else []
    for each in trainings:
        parts += [f"By the recipe `{teacher_card.cell(each['recipe'])}`:", teacher_card.table({"run": each})]
        parts += [_table(each["sources"], each["triples"])] if each["sources"] or each["triples"] else ["Its text files were not recorded."]
    return "\n\n".join(part for part in parts if part)


def _texts(source: dict[str, Any]) -> int:
    """How many texts a source gave, or pairs of texts."""
    return int(source["texts"] if "texts" in source else source["pairs"])


def _table(files: list[dict[str, Any]], triples: list[dict[str, Any]]) -> str:
    """A row for each file, then for each stage's triples, whose number is not recorded."""
    lines = ["| source | texts or pairs, with held-out ones | licence, as stated by the source |", "|---|---:|---|"]
    for each in files:
        name = each["name"]
        lines.append(_row(SHOWN.get(name, name), f"{_texts(each):,}", each["licence"] or LICENCES.get(name)))
    return "\n".join([*lines, *(_row(each["name"], "", each["licence"]) for each in triples)])


def _row(name: str, count: str, licence: str | None) -> str:
    return f"| {teacher_card.cell(name)} | {count} | {teacher_card.cell(licence or 'not named')} |"
