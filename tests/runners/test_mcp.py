"""The server of the Model Context Protocol, asked by the client of the same SDK."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

mcp: Any = pytest.importorskip("mcp")
ROOT = Path(__file__).resolve().parents[2]


async def asked(folder: Path, question: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EDGEDISTILL_CACHE": str(folder / ".cache")}
    program = [str(ROOT / "export" / "python" / "mcp_server.py"), str(folder)]
    server = mcp.StdioServerParameters(command=sys.executable, args=program, env=environment)
    async with mcp.Client(server) as client:
        (tool,) = (await client.list_tools()).tools
        assert str(folder) in tool.description
        return await client.call_tool(tool.name, {"question": question, "top": 1})


def test_an_agent_searches_a_folder(tmp_path):
    import anyio

    (tmp_path / "money.md").write_text("You get your money back within ten days.\n\nCall us on Monday.\n")
    (tmp_path / "cook.txt").write_text("Boil the potatoes in salted water.\n")
    answer = anyio.run(asked, tmp_path, "how are refunds handled?")
    found = answer.structured_content or json.loads(answer.content[0].text)
    (best,) = found["results"]
    assert (Path(best["file"]).name, best["line"]) == ("money.md", 1) and "money back" in best["text"]
    refused = anyio.run(asked, tmp_path, " ")
    assert refused.is_error and "the question is empty" in refused.content[0].text
