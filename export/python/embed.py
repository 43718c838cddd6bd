"""Run a bundle with numpy, tokenizers and onnxruntime alone. Copy this file next to a bundle, or start your own program from it.

python embed.py BUNDLE [PRECISION] < texts.txt      one text per line in, one embedding (a JSON array) per line out
python embed.py BUNDLE [PRECISION] --check          compare the embeddings of the bundle's golden texts; exit 1 where they differ

PRECISION: one that the bundle has; by default the first of int8, w8, fp32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def precisions(folder: Path) -> list[str]:
    """The precisions that a bundle has."""
    return list(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["precisions"])


def open_bundle(folder: Path, precision: str) -> Callable[[str], np.ndarray]:
    """A function from a text to its embedding: (d,) float32, of unit length. Longer texts are truncated to `max_tokens`."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    graph = folder / manifest["precisions"][precision]["file"]
    if not graph.resolve().is_relative_to(folder.resolve()):
        sys.exit(f"{graph}: leads out of the bundle's folder")
    session = onnxruntime.InferenceSession(graph)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest["max_tokens"])

    def embed(text: str) -> np.ndarray:
        ids = np.array([tokenizer.encode(manifest["prompt"] + text).ids], np.int64)
        return session.run([manifest["output"]], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0]

    return embed


def check(folder: Path, embed: Callable[[str], np.ndarray], precision: str) -> int:
    """Embed the golden texts and compare them with the stored embeddings; returns the exit code."""
    golden = json.loads((folder / "parity.json").read_text(encoding="utf-8"))
    cosines = [float(embed(text) @ np.array(vector, np.float32)) for text, vector in zip(golden["texts"], golden["vectors"], strict=True)]
    least = golden["cosine_at_least"][precision]
    print(json.dumps({"texts": len(cosines), "cosine_min": min(cosines), "cosine_at_least": least}))
    return 0 if min(cosines) >= least else 1


def main(arguments: list[str]) -> int:
    plain = [argument for argument in arguments if argument != "--check"]
    if not 1 <= len(plain) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(plain[0])
    precision = plain[1] if len(plain) == 2 else next(p for p in ("int8", "w8", "fp32", *precisions(folder)) if p in precisions(folder))
    if precision not in precisions(folder):
        print(f"{folder}: no precision {precision!r}; choose {' or '.join(precisions(folder))}", file=sys.stderr)
        return 2
    embed = open_bundle(folder, precision)
    if "--check" in arguments:
        return check(folder, embed, precision)
    for line in sys.stdin:
        print(json.dumps([round(float(x), 7) for x in embed(line.rstrip("\n"))]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
