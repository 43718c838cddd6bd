"""The README of a mobile package."""

from __future__ import annotations

from typing import Any

from edgedistill.mobile.ort_format import CONFIG
from edgedistill.mobile.usability_report import gist_lines

MANIFEST = "mobile.json"
USABILITY = "mobile_usability.txt"


def readme(found: dict[str, Any]) -> str:
    """Markdown, from what mobile.json will hold."""
    title = f"# {found['name']}, {found['precision']}, for phones"
    dims = f"{found['dims'][0]} dimensions" + (
        f" (or the first {', '.join(map(str, found['dims'][1:]))})" if found["dims"][1:] else ""
    )
    about = (
        f"Embeddings of {dims}, of unit length, from texts of up to {found['max_tokens']} tokens; longer "
        "ones are truncated."
    )
    return "\n".join(
        [
            title,
            "",
            about,
            "",
            *_files(found),
            "",
            *_use(found),
            "",
            *_reduced(found),
            "",
            *_usability(found),
            "",
        ]
    )


def _files(found: dict[str, Any]) -> list[str]:
    rows = {
        "model_with_tokenizer.onnx": "texts in, embeddings out; tokenizer included",
        "model_with_tokenizer.ort": "the same in the ORT format",
        "model.ort": "token ids in, embeddings out, in the ORT format",
        CONFIG: "the operators and types for a reduced build of onnxruntime",
        USABILITY: "what onnxruntime's mobile usability checker reports",
        "tokenizer.json": "the tokenizer, for the tokenizers library",
        "parity.json": "golden texts, their token ids and embeddings: repeat them on the phone",
        MANIFEST: "all of this for programs: sha256, prompt, dimensions, measured cosines",
    }
    kept = {
        name: text for name, text in rows.items() if found["takes"] == "texts" or "with_tokenizer" not in name
    }
    cosines = {
        name: f" (cosine to the bundle's embeddings {cosine:.6f} at least)"
        for name, cosine in found["parity"].items()
    }
    return [
        "| file | |",
        "| --- | --- |",
        *(f"| `{name}` | {text}{cosines.get(name, '')} |" for name, text in kept.items()),
    ]


def _use(found: dict[str, Any]) -> list[str]:
    if found["takes"] == "ids":
        prompt = f", after {found['prompt']!r}" if found["prompt"] else ""
        return [
            "`model.ort` takes `input_ids` and `attention_mask`, int64 (batch, sequence); "
            f"`{found['output']}` is (batch, dimensions).",
            f"Tokenize with `tokenizer.json`{prompt}, truncate to {found['max_tokens']} tokens, pad with "
            f"{found['pad_id']}.",
        ]
    count, versions = found["tokenizer"]["texts"], found["versions"]
    return [
        f"The input `texts` takes strings (batch); `{found['output']}` is (batch, dimensions). Prompt, "
        "truncation and padding are inside.",
        f"The token ids were equal to those of tokenizer.json for {count:,} generated texts, in batches,",
        f"with onnxruntime {versions['onnxruntime']} and onnxruntime-extensions "
        f"{versions['onnxruntime_extensions']}.",
        "Register onnxruntime-extensions before you open the graph; `Encoder.kt` and `Encoder.swift` of "
        "edgedistill show how.",
        "Remove U+0000 from texts first: on a phone a string ends there.",
    ]


def _reduced(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Reduced builds",
        "",
        f"`./build.sh --include_ops_by_config {CONFIG} --enable_reduced_operator_type_support "
        "--minimal_build extended …` builds an",
        "onnxruntime with no operator more; a minimal build reads the `.ort` files only.",
    ]
    if found["takes"] == "texts":
        operators = ", ".join(found["tokenizer"]["operators"])
        lines += [
            "`model_with_tokenizer` also needs `custom_ops` in the minimal build, and of "
            "onnxruntime-extensions:",
            f"{operators}.",
        ]
    return lines


def _usability(found: dict[str, Any]) -> list[str]:
    head = (
        "What NNAPI and CoreML could run of the graph, by onnxruntime's checker "
        f"([{USABILITY}]({USABILITY})):"
    )
    return ["## Accelerators", "", head, "", *gist_lines(found["usability"])]
