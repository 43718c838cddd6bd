"""What SECURITY.md promises of a stranger's bundle, in export/python/embed.py: the bundles of
tests/runtime/test_hostile.py. Of the core's file: test_core.py."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgedistill.export import bundle_writer
from edgedistill.runtime.trust import graph_check, tokenizer_check
from tests.export.test_export import make_run
from tests.runners import hostile

PYTHON = Path(__file__).resolve().parents[2] / "export" / "python" / "embed.py"
COMPUTED = ("Range", "ConstantOfShape")  # SECURITY.md does not promise how much memory a graph takes
NAMES = [name for name in hostile.HOSTILE if not name.startswith(COMPUTED)]

# What the answer to all bundles of a kind must name, by its name.
REASONS = {
    "external data": r"field 1[34] of a tensor|field (15|22) of a",
    "operator ": "operator that a bundle may not use",
    "If": "operator that|field 6 of an? attribute|field 1[01] of an? attribute",
    "a function": "field 25 of a model",
    "49,000 nodes": "more than (20000|20,000) nodes",
    "200,000": "fields",
    "Split: ": "no pattern of|none of a published|empty pattern",
    "Replace: ": "no pattern of|none of a published|empty pattern",
    "a template that repeats": "repeats the text",
    "long Unigram": "(unigram|characters of a token): [0-9]+, above 256",
    "continuation prefix": "(affix|continuing_subword_prefix): 10000000, above 100",
    "a word of any length": "(word|max_input_chars_per_word): 1000000000, above 256",
    "replacements that multiply": "(growth|times as long a text): [0-9e.+]+, above 1000",
    "dropout": "dropout",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each case its bundle, and "control", which is sound."""
    root = tmp_path_factory.mktemp("hostile")
    bundle_writer.export(make_run(root / "run"), ["fp32"], root / "good", lambda line: None)
    hostile.control(root / "good")
    made = {}
    for at, (name, change) in enumerate(
        [("control", hostile.control), *((name, hostile.HOSTILE[name]) for name in NAMES)]
    ):
        folder = made[name] = root / str(at) / "bundle"
        shutil.copytree(root / "good", folder)
        change(folder)
    return made


def embed_py() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed_py", PYTHON)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_python(folders: dict[str, Path]) -> dict[str, str]:
    module, found = embed_py(), {}
    for name, folder in folders.items():
        try:
            manifest = module.read_manifest(folder)
            row = module.Bundle(folder, next(iter(manifest["precisions"])))(hostile.TEXT)
            found[name] = f"opened: {row[:3]}"
        except SystemExit as refused:
            found[name] = f"exit: {refused.code}"
    return found


def test_each_is_refused(folders: dict[str, Path]) -> None:
    found = by_python(folders)
    assert found.pop("control").startswith("opened: ")
    assert len(found) > 100
    wrong = [f"{name}: {answer[:200]}" for name, answer in found.items() if not answer.startswith("exit: ")]
    assert not wrong, "\n".join(wrong)
    for kind, reason in REASONS.items():
        answers = {name: answer for name, answer in found.items() if name.startswith(kind)}
        assert answers
        other = [
            f"{name}: {answer[:200]}" for name, answer in answers.items() if not re.search(reason, answer)
        ]
        assert not other, "\n".join(other)


def pattern_of(expression: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": expression}}
    return {"model": {"type": "WordPiece", "vocab": {}}, "pre_tokenizer": split}


def accepted(expression: str) -> bool:
    try:
        tokenizer_check.check_tokenizer(json.dumps(pattern_of(expression)).encode())
    except ValueError:
        return False
    return True


GRAPH_CHECK = "check_graph _read _check_operator span number".split()
TOKENIZER_CHECK = """check_tokenizer _distinct _most _check_model _flat _check_step _check_strings _growth
_longest_replacement _added_tokens""".split()


def test_the_bounds_of_the_programs() -> None:
    """The limits of a tokenizer.json, and what is a pattern, are those of the package."""
    module, check = embed_py(), tokenizer_check
    assert (check.LIMITS, check.STEPS, check.GROWS) == (module.LIMITS, module.STEPS, module.GROWS)
    assert module.PATTERN == check.PATTERN
    for name in TOKENIZER_CHECK:
        assert inspect.getsource(getattr(module, name)) == inspect.getsource(getattr(check, name))
    patterns = [*hostile.PUBLISHED, *hostile.REGEXES.values(), *hostile.OTHERS, "[a\n&&b]"]
    expected = [accepted(each) for each in patterns]
    assert expected == [True] * len(hostile.PUBLISHED) + [False] * (len(patterns) - len(hostile.PUBLISHED))


def test_the_lists_of_the_programs() -> None:
    """Operators and known fields are those of the package."""
    expected = {"": graph_check.STANDARD, "com.microsoft": graph_check.MICROSOFT}
    names = {domain: sorted(" ".join(groups.values()).split()) for domain, groups in expected.items()}
    module = embed_py()
    assert {domain: sorted(text.split()) for domain, text in module.OPERATORS.items()} == names
    assert module.FIELDS == graph_check.FIELDS
    for name in GRAPH_CHECK:
        assert inspect.getsource(getattr(module, name)) == inspect.getsource(getattr(graph_check, name))
