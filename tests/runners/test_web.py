"""An exported page in real headless Chromium: the cases of export/web/test/cases.mjs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgedistill import device

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
    "few_lines_and_tables",
    "example_and_changed_lines",
    "results_by_keyboard",
    "kept_over_a_reload",
    "file_chosen_or_dropped",
    "refused_beside_an_open_one",
    "text_dropped",
    "shipped",
    "paste_and_stop",
    "refused_files",
    "no_simd",
    "pair_by_roles",
    "two_students_an_end_and_a_policy",
]
SLOW = ["search_check_time", "many_texts", "golden_texts", "phone_width"]


def missing() -> str | None:
    """Why the page cannot be tested here, None where it can."""
    if not shutil.which("node"):
        return "no node"
    if not CHROMIUM:
        return "no Chromium; install it, or name it in the environment variable CHROMIUM"
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        return "no export/web/node_modules; run npm install there"
    return None


needs_browser = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "site"
    for name in ("nano", "micro", "multi", "small"):
        device.write_page(name, folder)
    return folder


def run(page: Path, cases: list[str]):
    """Cases of test/browser.mjs. Its servers and its browser are Node's; this process opens no socket."""
    command = ["node", "test/browser.mjs", *cases]
    environment = {**os.environ, "CHROMIUM": str(CHROMIUM), "EDGEDISTILL_PAGE": str(page)}
    done = subprocess.run(
        command, cwd=WEB, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    results = list(map(json.loads, done.stdout.splitlines()))
    assert {result["case"] for result in results} == set(cases), done.stderr
    problems = {result["case"]: result["problem"] for result in results if not result["ok"]}
    assert not problems and done.returncode == 0


@needs_browser
def test_in_chromium(page: Path):
    """All cases in one test: the page is written once, whichever processes share the tests."""
    run(page, QUICK)


@pytest.mark.slow
@needs_browser
def test_in_chromium_at_length(page: Path):
    run(page, SLOW)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", ["firefox", "webkit"])
def test_in_other_browsers(name: str, page: Path):
    environment = {**os.environ, "EDGEDISTILL_PAGE": str(page)}
    command = ["node", "test/engines.mjs", name]
    done = subprocess.run(command, cwd=WEB, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_case_is_run():
    source = (WEB / "test" / "cases.mjs").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^  async (\w+)\(", source, re.MULTILINE)) == sorted(QUICK + SLOW)


def test_the_page_asks_nobody_else():
    """No script, style, font or image of another host, in the page or its modules."""
    for path in [*WEB.glob("*.html"), *WEB.glob("*.js"), *WEB.glob("*.css")]:
        hosts = set(re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8")))
        assert hosts <= {"www.w3.org"}, path.name  # the name of SVG


def test_versions_are_exact():
    """There is no lock file, so package.json names one version of each package."""
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["devDependencies"].values())
