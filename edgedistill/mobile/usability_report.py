"""What onnxruntime's mobile usability checker finds: which share of a graph NNAPI and CoreML could run, in
how many partitions."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any

COVERAGE = re.compile(
    r"^(\d+) partitions with a total of (\d+)/(\d+) nodes can be handled by the (.+) EP\.$", re.MULTILINE
)
VERDICT = re.compile(
    r"^Model should perform well with (.+?) (?:as is|if modified to have fixed input shapes): (\w+)$",
    re.MULTILINE,
)
ADVICE = {
    "NO": "use the CPU instead",
    "MAYBE": "measure it against the CPU",
    "YES": "use it",
}  # by the checker's verdict


def usability(graph: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """(the report as text, its gist) of an ONNX graph.

    The gist: {"NNAPI": {"partitions", "nodes", "of", "with_fixed_shapes", "verdict"}, …}, where the counts
        are those of the better
    case, and `with_fixed_shapes` is true where that needs inputs of one shape.
    """
    from onnxruntime.tools.mobile_helpers import usability_checker

    written = io.StringIO()
    logger = logging.Logger("mobile usability", logging.INFO)
    logger.addHandler(logging.StreamHandler(written))
    usability_checker.analyze_model(graph, logger=logger)
    text = written.getvalue().replace(str(graph), graph.name).strip() + "\n"
    return text, gist(text)


def gist(report: str) -> dict[str, dict[str, Any]]:
    """The gist of a report, as `usability` returns it."""
    found = dict[str, dict[str, Any]]()
    for partitions, nodes, total, provider in COVERAGE.findall(report):
        fixed = provider in found
        if not fixed or int(nodes) > found[provider]["nodes"]:
            found[provider] = {
                "partitions": int(partitions),
                "nodes": int(nodes),
                "of": int(total),
                "with_fixed_shapes": fixed,
            }
    for provider, verdict in VERDICT.findall(report):
        entry = found.setdefault(provider, {"partitions": 0, "nodes": 0, "of": 0, "with_fixed_shapes": False})
        entry["verdict"] = max(entry.get("verdict", "NO"), verdict, key=list(ADVICE).index)
    return found


def gist_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """One Markdown list item for each provider."""
    lines = []
    for provider, entry in found.items():
        share = f"{100 * entry['nodes'] / entry['of']:.0f}% of the nodes" if entry["of"] else "no node"
        shapes = ", if the input shapes are fixed" if entry["with_fixed_shapes"] else ""
        lines.append(
            f"- {provider}: {share}, in {entry['partitions']} partitions{shapes}; {ADVICE[entry['verdict']]}"
        )
    return lines
