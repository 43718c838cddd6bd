"""A student by awembed, which learns a collection: corpus, capture, distill, quantize, as its README says.

Its default student and teacher are on the hub, so both are the teacher of all peers here: `--student` another
base, `--teacher-url` another endpoint, which this file serves. Two things its README does not say: capture
takes embeddings of 4,096 dimensions only, so the endpoint fills its own up with zeros, which changes no
cosine; and training takes a number of steps, not minutes, so the first one, as a trial, tells how many. A
step embeds 80 texts of up to 256 tokens with gradients, and awembed refuses a student whose mean loss over
its last ten steps is not below that over its first ten, as it never is of ten steps or fewer. Documents are
as many as two fifths of the minutes are enough to capture, and no fewer than its corpus stage takes (3,000
queries). A document's name, which awembed expects to be a directory's, is its first words. It pools the last
token, and its queries carry its instruction.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from awembed import quantize
from harness import Opened, Task, lines, processor_seconds
from transformers import AutoModel, AutoTokenizer

CAPTURED_DIMS = 4096
FEWEST_DOCUMENTS = 1_600  # two queries each, and its corpus stage refuses fewer than 3,000
TRIAL_DOCUMENTS, TRIAL_STEPS = 64, 1
MOST_TOKENS, BATCH = 256, 32


class Teacher:
    """The teacher behind an endpoint as OpenAI's: mean-pooled, unit length, filled up with zeros."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer, self.model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)

    def embed(self, texts: list[str]) -> list[list[float]]:
        given = {"padding": True, "truncation": True, "max_length": MOST_TOKENS, "return_tensors": "pt"}
        inputs = self.tokenizer(texts, **given)
        with torch.no_grad():
            hidden = self.model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        rows = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        return torch.nn.functional.pad(rows, (0, CAPTURED_DIMS - rows.shape[1])).tolist()

    def serve(self) -> HTTPServer:
        teacher = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
                data = [{"index": at, "embedding": row} for at, row in enumerate(teacher.embed(texts))]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"data": data}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def _stage(*arguments: object) -> None:
    command = [sys.executable, "-c", "import sys; from awembed.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout, file=sys.stderr)
    if done.returncode:
        refused = [line for line in done.stdout.splitlines() if "[FAIL]" in line or "Error" in line]
        raise RuntimeError(f"awembed {arguments[0]}: {(refused or ['refused'])[-1]}")


def _write_readings(path: Path, documents: list[str]) -> None:
    named = {" ".join(text.replace("/", " ").split()[:8]): text for text in documents}
    rows = [{"rel": name, "reading": text, "prompt_version": "v1"} for name, text in named.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_int8(task: Task) -> dict[str, int]:
    task.folder.mkdir(parents=True, exist_ok=True)
    budget, began, documents = 60 * task.minutes, processor_seconds(), lines(task.documents)
    teacher = Teacher(task.teacher)
    for start in range(0, TRIAL_DOCUMENTS, BATCH):
        teacher.embed(documents[start : start + min(BATCH, TRIAL_DOCUMENTS)])
    rate = TRIAL_DOCUMENTS / (processor_seconds() - began)
    chosen = np.linspace(
        0, len(documents) - 1, min(len(documents), max(FEWEST_DOCUMENTS, int(0.4 * budget * rate)))
    )
    readings, corpus, out = (task.folder / name for name in ("readings.jsonl", "corpus.jsonl", "out"))
    _write_readings(readings, [documents[int(at)] for at in chosen])
    _stage("corpus", "--readings", readings, "--out", corpus)
    server = teacher.serve()
    shared = ("--corpus", corpus, "--seed", 1, "--out", out)
    _stage("capture", *shared, "--teacher-url", f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    student = ("--student", task.teacher, "--device", "cpu")
    started = processor_seconds()
    model = __import__("awembed.distill", fromlist=["train"])
    given = {"epochs": 1, "batch": 16, "lr": 2e-5, "max_len": MOST_TOKENS, "temp": 0.05, "margin_w": 1.0}
    model.train(out, str(task.teacher), 1, device="cpu", max_steps=TRIAL_STEPS, **given)
    a_step = (processor_seconds() - started) / TRIAL_STEPS
    steps = max(1, int((budget - (processor_seconds() - began)) / a_step))
    print(f"{a_step:.0f} s of a processor for a step, so {steps} steps", file=sys.stderr)
    _stage("distill", *shared, *student, "--max-steps", steps)
    _stage("quantize", *shared)
    return {"documents": len(chosen), "steps": steps}


def open_int8(task: Task) -> Opened:
    folder = task.folder / "out" / "student_int8"
    tokenizer, model = quantize.load_int8(folder)

    def encode(texts: list[str], prefix: str = "") -> np.ndarray:
        order = np.argsort([-len(text) for text in texts])
        given = (tokenizer, model, [texts[at] for at in order], MOST_TOKENS, BATCH, "cpu", prefix)
        rows = quantize.encode_texts(*given).numpy()
        return rows[np.argsort(order)]

    count = sum(each.numel() for each in model.parameters())
    query = lambda texts: encode(texts, quantize.QUERY_PREFIX)  # noqa: E731
    return Opened("awembed", encode, [folder / "model_int8.pt"], count, query, encode)
