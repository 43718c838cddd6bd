"""A server of the Model Context Protocol, by which agents search a folder by meaning and by words.

python mcp_server.py FOLDER [STUDENT]        after: pip install "mcp>=2"
"""

import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import edgedistill
from edgedistill.search_files import Search, search

folder, student = (*sys.argv[1:], "nano")[:2] if len(sys.argv) in (2, 3) else sys.exit(__doc__)
encoder = edgedistill.load(student)
server = MCPServer("edgedistill")


@server.tool(description=f"Find the passages in {folder} that answer a question, by meaning and by words.")
def search_folder(question: str, top: int = 5) -> dict[str, Any]:
    """The best texts with their files and lines; whether any is close; and which files were skipped."""
    try:
        found = search(encoder, Search([folder], question, top))
    except edgedistill.UserError as error:
        raise ToolError(str(error)) from None
    return {"results": found["results"], "close": found["close"], "skipped": found["read"]["skipped"]}


if __name__ == "__main__":
    server.run()  # over stdin and stdout
