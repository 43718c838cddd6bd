"""Find a bundle and one of its precisions by name: `nano`, `bundles/x`, `bundles/x:int8`; and what ships."""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgedistill import files, machine
from edgedistill.errors import UserError, unknown_name
from edgedistill.files import Json
from edgedistill.precisions import INT8_PRODUCTS, PRECISIONS, fastest_first

SCORES = files.PACKAGE / "shipped/bundles/scores.json"  # bench/documents.py writes it from the reports
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # ./x and /x are only folders
LANGUAGE = re.compile(r"[a-z]{2,3}(-\w{2,8})?")
DOCUMENTATION = "Python's documentation"  # the texts that ship, as records name them
LICENCES = {DOCUMENTATION: "PSF-2.0"}
SEARCH = "search-test"
SCORED = {"sts7": "STS", SEARCH: "search"}  # suites of every student, and their titles
CHOICE = """Smallest: micro. Best STS: nano. Best search: small. Several languages: multi.
Search this folder with one: edgedistill search "your question" small"""
FOLDER = Path("bundles")  # where `edgedistill export` writes, and where plain names are looked up


def locate(name: str | Path) -> tuple[Path, str | None]:
    """The folder of a bundle, and the precision where the name ends in one: `bundles/x:w8` -> (bundles/x,
    w8).

    A name is a folder, the name of a folder below bundles/, or a shipped bundle; what is no bundle hides
    none. Raises UserError where there is none of these, with the closest name, and where a string names a
    bundle here and another one that ships.
    """
    if not isinstance(name, str | Path) or not str(name).strip():
        raise UserError(f"bundle {str(name)!r}: no name; give a bundle's folder, or the name of a bundle")
    if located := _located(name):
        return located
    raise UserError(_not_found(_parted(str(name))[0]))


def find(name: str) -> tuple[Path, str | None] | None:
    """The folder and precision of a bundle, as `locate` gives them; None where there is no bundle of this
    name."""
    located = _located(name)
    return located if located is not None and _is_bundle(located[0]) else None


def check_not_shipped(name: str, folder: Path) -> None:
    """Raise UserError where the name of a folder here is that of a bundle that ships, too."""
    ships = files.shipped("bundle").get(name)
    if ships is not None and ships.parent != folder.resolve():
        raise UserError(
            f"{name}: the folder {folder} here, and a bundle that ships; give ./{folder} for the first, "
            "or rename it"
        )


def choose_precision(manifest: Json, folder: Path, asked: str | None, device: str = "cpu") -> str:
    """The precision asked for, by default the one that the bundle has and that is the fastest on this
    machine.

    Raises UserError where the bundle lacks it.
    """
    available = manifest["precisions"]
    if asked is None:
        processor = "int8_cpu" if INT8_PRODUCTS & set(machine.flags()) else "cpu"
        return fastest_first(available, "cuda" if device == "cuda" else processor)[0]
    if asked in available:
        return asked
    place = str(folder)
    fact = unknown_name("precision", asked, available)
    if folder.resolve().parent == files.shipped_folder("bundle").resolve():
        place = folder.name
    others = f"edgedistill export {place} --precision writes others ({', '.join(PRECISIONS)})"
    raise UserError(f"{place}: {fact}; {others}")


def _located(name: str | Path) -> tuple[Path, str | None] | None:
    if (folder := _folder(name)) is not None:
        return folder, None
    before, precision = _parted(str(name))
    folder = _folder(type(name)(before)) if precision else None
    return None if folder is None else (folder, precision)


def _parted(name: str) -> tuple[str, str]:
    """What names the bundle, and the precision behind it; an empty one where there is none."""
    before, _, precision = name.rpartition(":")
    return (before, precision) if before and precision.isidentifier() else (name, "")


def _folder(name: str | Path) -> Path | None:
    here = [folder for folder in (Path(name), FOLDER / name) if os.path.isdir(folder)]
    here.sort(key=_is_bundle, reverse=True)
    if here and _is_bundle(here[0]):
        if isinstance(name, str):  # a Path is a folder's
            check_not_shipped(name, here[0])
        return here[0]
    shipped = files.shipped("bundle").get(str(name))
    return shipped.parent if shipped else next(iter(here), None)


def _is_bundle(folder: Path) -> bool:
    return (folder / "manifest.json").is_file()


def _not_found(name: str) -> str:
    if name.startswith("packaged:"):
        return f"{name}: a model, not a bundle; export it first: edgedistill export {name} --out bundles/NAME"
    if Path(name).is_file():
        return f"{name}: a file; give a bundle's folder, or the name of one that ships"
    owner, _, model = name.partition("/")
    if model and HUB_ID.fullmatch(name) and owner not in ("bundles", "runs") and not Path(owner).exists():
        return (
            f"{name}: no bundle here, it looks like a hub id; make a bundle of that: edgedistill export "
            f"{name} --revision main --out bundles/{model}"
        )
    known = {*files.shipped("bundle"), *(path.parent.name for path in FOLDER.glob("[!.]*/manifest.json"))}
    fact = f"{name}: no such folder, and " * (len(Path(name).parts) > 1) + unknown_name("bundle", name, known)
    return f"{fact}; `edgedistill students` lists what ships, `edgedistill export MODEL` makes one"


def languages(manifest: Json) -> list[str]:
    """The languages that a student was trained on: those of its pairs, else of the column of its texts, where
    that has a language's code for a name (`en`)."""
    rows = (manifest.get("recipe") or {}).get("rows") or {}
    tables = rows.get("tables") or [rows]
    named = [str(language) for table in tables for language in table.get("languages") or ()]
    named = named or re.findall(r"^[a-z]{2}$", str(rows.get("column")))
    return list(dict.fromkeys(filter(LANGUAGE.fullmatch, named)))


def shipped() -> list[Json]:
    """The bundles that ship, a dict for each: {name, folder, about, languages, max_tokens, size_bytes,
    scores, p50_ms, licences}.

        >>> [student["name"] for student in edgedistill.shipped()]
        ['micro', 'nano', 'small', 'multi']

    size_bytes: of the graph and tokenizer.json.
    scores: {suite: score}, averages, 0 to 1.
    p50_ms: median time of a short text on one thread of the processor that README names.
    licences: of the teachers and texts of all trainings of the student.
    """
    students = []
    for name, measured in files.read_json(SCORES).items():
        folder = files.shipped("bundle")[name].parent
        manifest = files.read_json(folder / "manifest.json")
        graphs = manifest["precisions"].values()
        students.append(
            {
                "name": name,
                "folder": str(folder),
                "about": manifest["recipe"]["about"],
                "languages": languages(manifest),
                "max_tokens": manifest["max_tokens"],
                "size_bytes": sum(graph["size_bytes"] for graph in graphs)
                + (folder / "tokenizer.json").stat().st_size,
                **measured,
                "licences": _licences(manifest["recipe"], manifest["run"]),
            }
        )
    return students


def _licences(recorded: Json, run: Json) -> list[str]:
    """The licences of what a student was trained on, also in earlier trainings, once each whatever their
    letters."""
    read = run["teachers"] + run["corpus"]["sources"]
    for earlier in run.get("earlier", []):
        read += earlier["teachers"] + earlier["sources"] + earlier["tuples"]
    stated = [row.get("licence") or LICENCES.get(row["name"]) for row in read]
    for part in (recorded, *recorded["stages"]):
        stated += (part["rows"] or {}).get("licences", {}).values()
    return list({licence.lower(): licence for licence in filter(None, stated)}.values())
