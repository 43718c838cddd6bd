"""Convert an older recipe, with `corpus`, `pairs`, `tuples` or `task`, to one with `rows`. Comments are lost.

python recipes/convert_rows.py old.yaml > new.yaml
"""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from edgedistill.errors import UserError
from edgedistill.recipe import DOCUMENTATION, parse, yaml_file

RENAMED = {"texts": "files", "pairs": "tables", "licence": "licences", "train": "files", "queries": "kinds"}


def with_rows(recipe: dict[str, Any]) -> dict[str, Any]:
    """The data of a recipe; one that has `rows` already stays as it is."""
    found = {"rows" if key == "corpus" else key: value for key, value in recipe.items()}
    if recipe.get("corpus"):
        found["rows"] = rows(recipe["corpus"])
    if recipe.get("stages"):
        found["stages"] = [_stage(stage) for stage in recipe["stages"]]
        if start := found["stages"][-1].pop("start", None):
            found["student"] = {"weights": start}
    return found


def _stage(stage: dict[str, Any]) -> dict[str, Any]:
    found = {"tables" if key == "pairs" else key: value for key, value in stage.items()}
    for key in {"tuples", "task"} & found.keys():
        section = found.pop(key)
        found["rows"] = rows(section, key == "task") if section else None
    if found.get("kind") == "finetune":
        found.pop("bucket", None)
    if found.get("augment"):
        found["augment"] = {key: value for key, value in found["augment"].items() if key != "pos"}
    return found


def rows(section: dict[str, Any], labelled: bool = False) -> dict[str, Any]:
    """A corpus, tuples, or a labelled task as rows: keys with other names, and what was said by `kind`."""
    kind, found = section.get("kind"), {key: value for key, value in section.items() if key != "kind"}
    if labelled:
        found = {"columns": found.pop("texts", ["sentence"]), "label": "label", **found}
        if kind == "hub":
            found = {"dev": "validation", "split": found.pop("train", "train"), **found}
    scores, licence = found.pop("scores", None) or {}, found.pop("licence", None)
    found = {RENAMED.get(key, key): value for key, value in found.items()}
    if kind == "documentation":
        its_words = (("min_words", 4), ("max_words", 64))
        found = {"files": [DOCUMENTATION], **{k: v for k, v in found.items() if (k, v) not in its_words}}
    if kind == "corpus":
        found["queries"] = {key: found.pop(key) for key in ("kinds", "per_text") if key in found}
    if "tables" in found:
        found["tables"] = [_table(table) for table in found["tables"]]
    used = {key: value for key, value in scores.items() if value}
    found |= {"scores": used.pop("columns")} if "columns" in used else {}
    found |= used  # what is no longer known, and is refused
    named = found.get("files") or [found.get("dataset")]
    return found | ({"licences": {Path(str(name)).name: licence for name in named}} if licence else {})


def _table(table: dict[str, Any]) -> dict[str, Any]:
    found = {"limit_per_file" if key == "limit" else key: value for key, value in table.items()}
    return found | {"languages": list(table.get("languages") or map(str, table["columns"]))}


if __name__ == "__main__":
    options = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("recipe", type=Path, help="the older recipe; the new one is printed")
    path = options.parse_args().recipe
    try:
        converted = with_rows(yaml_file.read(path))
        parse(converted, str(path))
    except (OSError, UserError) as error:
        options.exit(2, f"{error}\n")
    sys.stdout.write(yaml_file.dump(converted))
