"""The browser runner and its page, in real headless Chromium: the cases of export/web/test/cases.mjs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).resolve().parents[2] / "export" / "web"
CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)

QUICK = [
    "url",
    "search_by_words_too",
    "few_lines_tables_and_folders",
    "example_and_changed_lines",
    "results_by_keyboard",
    "kept_over_a_reload",
    "folder_dropped",
    "refused_beside_an_open_one",
    "text_dropped",
    "shipped",
    "paste_and_stop",
    "refused_as_in_node",
    "no_simd",
    "pair_by_roles",
    "server_stays_in_its_folder",
]
SLOW = ["search_check_time", "folder_chosen", "no_bundle_in_folder", "refused_bundles"]
SLOW += ["gives_as_in_node", "many_texts", "phone_width", "webgpu"]


def missing() -> str | None:
    """Why the page cannot be tested here, None where it can."""
    if not shutil.which("node"):
        return "no node"
    if not CHROMIUM:
        return "no Chromium; install it, or name it in the environment variable CHROMIUM"
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        return "no export/web/node_modules; run npm install there"
    if not (WEB / "vendor" / "ort-wasm-simd-threaded.wasm").is_file():
        return "no export/web/vendor; run npm run vendor there"
    return None


needs_browser = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def run(cases: list[str]) -> dict[str, dict[str, Any]]:
    """The result of each case of test/browser.mjs. Its servers and its browser are Node's; this process opens
    no socket."""
    command = ["node", "test/browser.mjs", str(WEB.parents[1] / "edgedistill/shipped/bundles/nano"), *cases]
    environment = {**os.environ, "CHROMIUM": str(CHROMIUM)}
    done = subprocess.run(
        command, cwd=WEB, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    results = {result["case"]: result for result in map(json.loads, done.stdout.splitlines())}
    assert set(results) == set(cases), done.stderr
    assert (done.returncode == 0) == all(result["ok"] for result in results.values())
    return results


@pytest.fixture(scope="module")
def quick() -> dict[str, dict[str, Any]]:
    return run(QUICK)


@pytest.fixture(scope="module")
def slow() -> dict[str, dict[str, Any]]:
    return run(SLOW)


@needs_browser
@pytest.mark.parametrize("case", QUICK)
def test_in_chromium(quick: dict[str, dict[str, Any]], case: str) -> None:
    assert quick[case]["ok"], quick[case]["problem"]


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("case", SLOW)
def test_in_chromium_at_length(slow: dict[str, dict[str, Any]], case: str) -> None:
    assert slow[case]["ok"], slow[case]["problem"]


def test_every_case_is_run() -> None:
    source = (WEB / "test" / "cases.mjs").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^  async (\w+)\(", source, re.MULTILINE)) == sorted(QUICK + SLOW)


def test_the_page_asks_nobody_else() -> None:
    """No script, style, font or image of another host, in the page or its modules."""
    for path in [*WEB.glob("*.html"), *WEB.glob("*.js"), *WEB.glob("*.css")]:
        hosts = set(re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8")))
        assert hosts <= {"www.w3.org"}, path.name  # the name of SVG


@needs_browser
def test_what_is_shared_with_node_is_a_copy() -> None:
    """`make runners` copies again what changed."""
    core, copied = WEB.parent / "node" / "core", WEB / "vendor" / "core"
    assert sorted(path.name for path in core.iterdir()) == sorted(path.name for path in copied.iterdir())
    assert all(path.read_bytes() == (copied / path.name).read_bytes() for path in core.iterdir())


def test_versions_are_exact() -> None:
    """There is no lock file, so package.json names one version of each package."""
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    for versions in (package["dependencies"], package["devDependencies"]):
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())
