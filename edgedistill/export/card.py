"""A bundle's card: its README.md, from its manifest. Every number in it was measured when the bundle was made."""

from __future__ import annotations

from typing import Any

from edgedistill.data.corpus import PARAGRAPHS

SIZES = {"fp32": "float32", "w8": "8-bit weights, the safe default", "int8": "8-bit products, fastest at batch 1"}

UNMOVED = 0.99999  # the cosine from which a text alone and in a batch are the same but for float32's last digits


def card(manifest: dict[str, Any], others: list[str]) -> str:
    """The card as Markdown. `others`: the libraries besides ours that open the bundle."""
    head = "---\nlibrary_name: onnx\npipeline_tag: sentence-similarity\ntags: [sentence-embeddings, edgedistill, onnx]\n---"
    parts = [head, f"# {manifest['name']}", _about(manifest), _table(manifest), _drift(manifest), _use(manifest, others), _made(manifest)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(manifest: dict[str, Any]) -> str:
    parameters, spec = manifest["parameters"], manifest["recipe"]
    about = f"{spec['about']}\n\n" if spec.get("about") else ""
    kinds = {"teacher": "The sentence encoder", "reduced": "The sentence encoder, its vectors reduced as its recipe's `targets` say,"}
    of = kinds.get(manifest["kind"], f"A {manifest['kind']} student of")
    prompt = f" The prompt `{manifest['prompt']}` is put before every text." if manifest["prompt"] else ""
    return (
        f"{about}{of} `{manifest['teacher']}`: a text of up to {manifest['max_tokens']} tokens becomes {manifest['dims'][0]} numbers, "
        f"of unit length.{prompt}\n\n{parameters['total']:,} parameters: {parameters['embedding']:,} in the embeddings, "
        f"{parameters['encoder']:,} in the encoder, {parameters['head']:,} in the head."
    )


def _table(manifest: dict[str, Any]) -> str:
    lines = [
        "| precision | | file | MB | cosine to torch, mean | min | alone against in a batch, mean | min |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for precision, entry in manifest["precisions"].items():
        parity, drift = entry["parity"], entry["drift"]
        lines.append(
            f"| {precision} | {SIZES[precision]} | `{entry['file']}` | {entry['size_bytes'] / 1e6:.2f} | {parity['cosine_mean']:.5f} "
            f"| {parity['cosine_min']:.5f} | {drift['mean']:.5f} | {drift['min']:.5f} |"
        )
    return "\n".join(lines)


def _drift(manifest: dict[str, Any]) -> str:
    said = (
        "The cosines are over the awkward texts of `parity.json`, against the trained student in torch. Accuracy on tasks, latency and "
        "memory are not typed here: `edgedistill bench` measures them on your machine."
    )
    if "int8" not in manifest["precisions"]:
        return said
    drift = manifest["precisions"]["int8"]["drift"]["min"]
    if drift >= UNMOVED:
        return said
    return (
        f"{said}\n\n**int8 depends on the batch.** It scales activations over all texts that run together, so a text alone and the same "
        f"text in a batch may differ: down to cosine {drift:.5f} on these texts. Where stored vectors must be reproducible, embed one at a "
        "time or use w8."
    )


def _use(manifest: dict[str, Any], others: list[str]) -> str:
    first = "w8" if "w8" in manifest["precisions"] else next(iter(manifest["precisions"]))
    parts = [
        "## Use",
        "```python\nimport edgedistill\n\n"
        f'encoder = edgedistill.load("path/to/this/folder", precision="{first}")\n'
        'vectors = encoder.encode(["a text", "another"])  # (2, d) float32, unit rows\n```',
        "Any runtime of ONNX models with onnxruntime's operators: inputs `input_ids` and `attention_mask` (int64, any batch and length), "
        "output `sentence_embedding`, already of unit length. `tokenizer.json` holds the tokenizer. `parity.json` holds texts, ids and "
        "vectors to test a runner with; `edgedistill verify` does.",
    ]
    if "sentence-transformers" in others:
        parts.append(
            "sentence-transformers, with its ONNX backend (no torch weights are included):\n\n```python\n"
            'SentenceTransformer("path/to/this/folder", backend="onnx").encode(["a text"])\n```'
        )
    if "transformers.js" in others:
        parts.append(_javascript(manifest))
    return "\n\n".join(parts)


def _javascript(manifest: dict[str, Any]) -> str:
    prompt = f'"{manifest["prompt"]}" + ' if manifest["prompt"] else ""
    return (
        "transformers.js (its `q8` is our int8):\n\n```js\n"
        'import { AutoModel, AutoTokenizer } from "@huggingface/transformers";\n'
        'const tokenizer = await AutoTokenizer.from_pretrained("path/to/this/folder");\n'
        'const model = await AutoModel.from_pretrained("path/to/this/folder", { dtype: "q8" });\n'
        f'const {{ sentence_embedding }} = await model(await tokenizer([{prompt}"a text"], {{ padding: true, truncation: true }}));\n'
        "```"
    )


def _made(manifest: dict[str, Any]) -> str:
    corpus = manifest["run"].get("corpus")
    held = f" ({corpus['held_out']:,} more were held out)" if corpus and corpus["held_out"] else ""
    texts = f" on {corpus['texts'] - corpus['held_out']:,} texts{held}" if corpus else ""
    stages = ", ".join(f"{stage['name']} ({stage['steps']:,} steps)" for stage in manifest["run"].get("stages", []))
    trained = "Nothing was trained: these are the teacher's own weights."
    if stages:
        trained = f"Trained{texts} by the recipe `{manifest['recipe']['name']}`: {stages}."
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    made = f"## Made\n\n{trained} The whole recipe is in `manifest.json`. Written {manifest['made_at']} with {versions}."
    return f"{made}\n\n{sources}" if (sources := _sources(manifest)) else made


def _sources(manifest: dict[str, Any]) -> str:
    """A row for each file of texts whose licence the recipe names."""
    licences = (manifest["recipe"].get("corpus") or {}).get("licences")
    if not licences:
        return ""
    lines = ["| texts, held-out ones included | | licence, as their source states it |", "|---|---:|---|"]
    licences = {PARAGRAPHS: "those of the files above", **licences}
    lines += [
        f"| {each['name']} | {each['texts']:,} | {licences.get(each['name'], 'not named')} |"
        for each in manifest["run"]["corpus"]["sources"]
    ]
    return "\n".join(lines)
