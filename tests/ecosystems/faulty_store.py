"""An S3 server (moto's) behind a proxy that fails as told: python faulty_store.py FOLDER.

It prints its address and runs until stdin ends. FOLDER/plan.json is read at each request: {"kind", "count",
"method"}; the next `count` requests of that method for an object fail so: `500`; `slow`, the body a byte
after the other for a while; `cut`, the connection ends in the middle of the body; `short`, half of the body
is all.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from moto.server import ThreadedMotoServer

HOP = {"connection", "transfer-encoding", "content-length", "server", "date"}
TRICKLED = 40  # bytes of a slow body, .05 s between two of them


def planned(folder: Path, method: str) -> str:
    """The fault of this request, which is then one less; empty for none."""
    plan = folder / "plan.json"
    found: dict[str, Any] = json.loads(plan.read_text()) if plan.exists() else {}
    if found.get("method") != method or found["count"] < 1:
        return ""
    plan.write_text(json.dumps({**found, "count": found["count"] - 1}))
    return str(found["kind"])


def proxy(folder: Path, port: int) -> type[BaseHTTPRequestHandler]:
    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *values: object):
            with (folder / "requests.txt").open("a") as file:
                file.write(f"{self.command} {self.path}\n")

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_object = "?" not in self.path and self.path.count("/") > 1
            fault = planned(folder, self.command) if is_object else ""
            if fault == "500":
                self.send_response(500)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            server = http.client.HTTPConnection("127.0.0.1", port)
            server.request(self.command, self.path, body, dict(self.headers))
            found = server.getresponse()
            data = found.read()
            headers = [(name, value) for name, value in found.getheaders() if name.lower() not in HOP]
            length = found.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            sent = data[: len(data) // 2] if fault in ("cut", "short") else data
            self.send_response(found.status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(sent)) if fault == "short" else length or "0")
            self.end_headers()
            if self.command != "HEAD":
                for at in range(TRICKLED if fault == "slow" else 0):
                    self.wfile.write(sent[at : at + 1])
                    time.sleep(0.05)
                self.wfile.write(sent[TRICKLED:] if fault == "slow" else sent)
            self.close_connection = fault == "cut"

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    return Proxy


def main():
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    found = ThreadingHTTPServer(("127.0.0.1", 0), proxy(Path(sys.argv[1]), server.get_host_and_port()[1]))
    threading.Thread(target=found.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{found.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
