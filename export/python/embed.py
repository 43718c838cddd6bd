"""Run a bundle with numpy, tokenizers and onnxruntime alone. Copy this file next to a bundle, or start your own program from it.

python embed.py BUNDLE [PRECISION] < texts.txt      one text per line in, one embedding (a JSON array) per line out
python embed.py BUNDLE [PRECISION] --check          compare the embeddings of the bundle's golden texts; exit 1 where they differ

BUNDLE: a folder. PRECISION: one that the bundle has; by default the first of int8, w8, fp32.
"""

import argparse
import hashlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def verified(folder: Path, name: str) -> bytes:
    """A file of the bundle, whose sha256 is that of the manifest. Exits with 1 where it is not."""
    path, expected = folder / name, json.loads((folder / "manifest.json").read_bytes())["files"].get(name)
    if not path.resolve().is_relative_to(folder.resolve()):
        sys.exit(f"{path}: leads out of the bundle's folder")
    data = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(data).hexdigest() != expected:
        sys.exit(f"{path}: missing, or changed since export (its sha256 is not that of manifest.json); copy the bundle again")
    return data


def open_bundle(folder: Path, precision: str) -> Callable[[str], np.ndarray]:
    """A function from a text to its embedding: (d,) float32, of unit length. Longer texts are truncated to `max_tokens`."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    session = onnxruntime.InferenceSession(verified(folder, manifest["precisions"][precision]["file"]))
    tokenizer = Tokenizer.from_str(verified(folder, "tokenizer.json").decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest["max_tokens"])

    def embed(text: str) -> np.ndarray:
        ids = np.array([tokenizer.encode(manifest["prompt"] + text).ids], np.int64)
        return session.run([manifest["output"]], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0]

    return embed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("precision", nargs="?")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if not (asked.bundle / "manifest.json").is_file():
        way_out = "give the folder of one (of a shipped bundle, edgedistill verify NAME prints it)"
        parser.exit(2, f"{asked.bundle}: not a bundle (no manifest.json); {way_out}\n")
    available = list(json.loads((asked.bundle / "manifest.json").read_bytes())["precisions"])
    precision = asked.precision or next(each for each in ("int8", "w8", "fp32", *available) if each in available)
    if precision not in available:
        parser.exit(2, f"{asked.bundle}: no precision {precision!r}; choose {' or '.join(available)}\n")
    embed = open_bundle(asked.bundle, precision)
    if asked.check:
        golden = json.loads(verified(asked.bundle, "parity.json"))
        pairs, least = zip(golden["texts"], golden["vectors"], strict=True), golden["cosine_at_least"][precision]
        cosines = [float(embed(text) @ np.array(vector, np.float32)) for text, vector in pairs]
        print(json.dumps({"texts": len(cosines), "cosine_min": min(cosines), "cosine_at_least": least}))
        return 0 if all(cosine >= least for cosine in cosines) else 1
    for line in sys.stdin:
        print(json.dumps([round(float(x), 7) for x in embed(line.rstrip("\n"))]))
    return 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end silently when the reader is gone, as with `| head`
    sys.exit(main())
