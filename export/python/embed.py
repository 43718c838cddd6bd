"""Run a bundle with numpy, tokenizers and onnxruntime alone: a file to copy, or to port to another language.

python embed.py BUNDLE [PRECISION] [--as query] < texts.txt
    reads one text a line and writes one embedding (a JSON array) a line; of queries or documents, with the
    bundle's prompt for them, where it has one
python embed.py BUNDLE [PRECISION] --check
    compares the embeddings of the bundle's golden texts; exit 1 where they differ

BUNDLE: a folder, of a pair of encoders its query or document. PRECISION: one that the bundle has; by default
the fastest. Hashes are compared; a stranger's graph and tokenizer are not checked, as edgedistill.load does.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # which onnxruntime reads when it is imported
import onnxruntime

ROLES = {"text": "prompt", "query": "query_prompt", "document": "document_prompt"}


class Bundle:
    """An opened encoder: called with a text and its role, it returns the embedding, (d,) float32, of unit
    length. Opening one exits where a file is missing, damaged or of no encoder."""

    def __init__(self, folder: Path, precision: str | None = None) -> None:
        if not (folder / "manifest.json").is_file():
            sys.exit(f"{folder}: not a bundle (no manifest.json); `edgedistill verify NAME` prints a folder")
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_bytes())
        if self.manifest.get("kind") == "pair":
            sys.exit(f"{folder}: a pair of encoders; give {folder / 'query'} or {folder / 'document'}")
        if self.manifest.get("labels"):
            sys.exit(f"{folder}: a classifier, which has no embeddings; classify with edgedistill")
        precisions = self.manifest["precisions"]
        ranks = {name: entry.get("rank", {}).get("int8_cpu", 99) for name, entry in precisions.items()}
        self.precision = precision or min(ranks, key=lambda name: ranks[name])
        if self.precision not in precisions:
            sys.exit(f"{folder}: no precision {precision!r}; choose {' or '.join(precisions)}")
        self._session = onnxruntime.InferenceSession(self.read(precisions[self.precision]["file"]))
        self._tokenizer = Tokenizer.from_str(self.read("tokenizer.json").decode())
        self._tokenizer.no_padding()  # it truncates to max_tokens

    def read(self, name: str) -> bytes:
        """A file of the bundle, as it was exported."""
        path = self.folder / name
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != self.manifest["files"].get(name):
            sys.exit(f"{path}: missing, or changed since export; copy the bundle again")
        return data

    def token_ids(self, text: str, role: str = "text") -> list[int]:
        prompt = self.manifest.get(ROLES[role], self.manifest["prompt"])
        return list(self._tokenizer.encode(prompt + text).ids)

    def __call__(self, text: str, role: str = "text") -> np.ndarray:
        ids = np.array([self.token_ids(text, role)], np.int64)
        # a graph of a fixed shape takes no other
        room = self.manifest["max_tokens"] - ids.shape[1] if "shape" in self.manifest else 0
        columns = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        columns = {name: np.pad(row, ((0, 0), (0, room))) for name, row in columns.items()}
        row: np.ndarray = self._session.run([self.manifest["output"]], columns)[0][0]
        return row


def check(embed: Bundle) -> bool:
    """Embed the golden texts, and print how they compare."""
    golden = json.loads(embed.read("parity.json"))
    least = golden["cosine_at_least"][embed.precision]
    roles = golden.get("roles", ["text"] * len(golden["texts"]))
    wrong = 0
    cosines = []
    for text, role, ids, vector in zip(golden["texts"], roles, golden["ids"], golden["vectors"], strict=True):
        wrong += embed.token_ids(text, role) != ids
        cosines.append(float(embed(text, role) @ np.array(vector, np.float32)))
    result = {"texts": len(cosines), "other_token_ids": wrong, "cosine_min": min(cosines)}
    print(json.dumps({**result, "cosine_at_least": least}))
    return not wrong and min(cosines) >= least


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("precision", nargs="?")
    parser.add_argument("--as", dest="role", choices=ROLES, default="text")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    embed = Bundle(asked.bundle, asked.precision)
    if asked.check:
        return int(not check(embed))
    for line in sys.stdin:
        row = embed(line.rstrip("\n"), asked.role)
        print(json.dumps([round(x, 7) for x in row.tolist()]))
    return 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # end silently when the reader is gone, as with `| head`
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
