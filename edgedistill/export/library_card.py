"""The part of a model card that is for other programs: plain onnxruntime, other libraries, and what each
graph asks of a runtime."""

from __future__ import annotations

import json
from typing import Any

from edgedistill.precisions import PRECISIONS, fastest_first

DTYPES = {
    name: row.dtype for name, row in PRECISIONS.items() if row.dtype
}  # how transformers.js names the files that it looks for
TRUNCATION = (  # of transformers.js 4
    "transformers.js cuts texts above the limit behind their special tokens, so that the last of these is "
    "missing and the embedding "
    "differs slightly."
)
OPTIMUM = '`pip install "sentence-transformers[onnx]<6"`'  # optimum-onnx 0.1 needs transformers below 4.58


def plain(manifest: dict[str, Any], precision: str) -> str:
    """Ten lines of Python that give the bundle's embeddings with onnxruntime and tokenizers alone. They run
    as they stand."""
    texts = f"[{json.dumps(manifest['prompt'])} + text for text in texts]" if manifest["prompt"] else "texts"
    return (
        "```python\n"
        "import numpy as np\n"
        "import onnxruntime\n"
        "from tokenizers import Tokenizer\n\n"
        'folder, texts = "path/to/this/folder", ["a text", "another"]\n'
        f'tokenizer = Tokenizer.from_file(f"{{folder}}/tokenizer.json")  # truncates to '
        f"{manifest['max_tokens']} tokens\n"
        f"tokenizer.enable_padding(pad_id={manifest['pad_id']})\n"
        f"rows = tokenizer.encode_batch({texts})\n"
        'columns = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in '
        "rows]}\n"
        f'session = onnxruntime.InferenceSession(f"{{folder}}/{manifest["precisions"][precision]["file"]}")\n'
        "inputs = {name: np.array(column, np.int64) for name, column in columns.items()}\n"
        f'embeddings = session.run(["{manifest["output"]}"], inputs)[0]  # (2, {manifest["dims"][0]})\n'
        "```"
    )


def other_libraries(manifest: dict[str, Any], libraries: list[str]) -> str:
    """How each library opens the folder, and which cannot. libraries: those that can, as
    `library_files.libraries` names them."""
    explained = (
        ("sentence-transformers", _sentence_transformers),
        ("model2vec", _model2vec),
        ("transformers.js pipeline", _pipeline),
        ("transformers.js model", _javascript_model),
        ("fastembed", _fastembed),
        ("text-embeddings-inference", _inference_server),
    )
    missing = (
        "transformers.js pipeline" if "transformers.js pipeline" in libraries else "transformers.js model"
    )
    shown = [
        name
        for name, _ in explained
        if name in libraries and not (name == "transformers.js model" and name != missing)
    ]
    parts = [explain(manifest) for name, explain in explained if name in shown]
    return "\n\n".join([part for part in parts if part] + _not_opened(manifest, libraries))


def graphs(manifest: dict[str, Any]) -> str:
    """The weights and the operators of each graph; empty for a bundle whose manifest does not have them."""
    lines = []
    for precision, entry in manifest["precisions"].items():
        if operators := entry.get("operators"):
            weights = entry.get("weights") or PRECISIONS[precision].description
            lines.append(f"- **{precision}**: {weights}. Operators: {', '.join(operators)}.")
    if not lines:
        return ""
    tested = f"onnxruntime {manifest['versions']['onnxruntime']} (Python), on the golden texts"
    encoders = (
        "Bundles of every kind of student are tested in onnxruntime-node, in onnxruntime-web (WASM, "
        "Chromium) and in the libraries above. "
    )
    about = (
        f"This bundle was compared with torch in {tested}; `parity.json` repeats that test in any runner. "
        f"{'' if manifest.get('labels') else encoders}Operators of `com.microsoft` are onnxruntime's own: "
        "all its builds have them, those "
        "for browsers and phones too; other runtimes do not."
    )
    return "\n".join(["## Graphs", "", about, "", *lines])


def _sentence_transformers(manifest: dict[str, Any]) -> str:
    file = next(iter(manifest["precisions"].values()))["file"]  # the most exact
    others = "" if len(manifest["precisions"]) == 1 else " The other graphs are chosen by their `file_name`."
    return (
        f"**sentence-transformers**, with its ONNX backend ({OPTIMUM}, which brings optimum-onnx): the "
        f"folder has no torch weights.{others}"
        "\n\n```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("path/to/this/folder", backend="onnx", model_kwargs={{"file_name": '
        f'"{file}"}})\n'
        'model.encode(["a text"])\n```'
    )


def _model2vec(manifest: dict[str, Any]) -> str:
    return (
        "**model2vec** and **sentence-transformers** (no ONNX backend needed) read the embedding table in "
        "`0_StaticEmbedding`, in float32. "
        "A text without any token, or one that spells out a special token such as [CLS], gets another "
        "embedding there; in model2vec, which "
        "leaves unknown tokens out, so does a text with these.\n\n"
        "```python\nfrom model2vec import "
        'StaticModel\n\nStaticModel.from_pretrained("path/to/this/folder").encode(["a text"])\n```'
    )


def _dtype(manifest: dict[str, Any]) -> str:
    """The options of transformers.js that choose a graph."""
    ranked = fastest_first(manifest["precisions"], "int8_cpu")
    known = [DTYPES[precision] for precision in ranked if precision in DTYPES]
    if known:
        return f'{{ dtype: "{known[0]}" }}'
    file = manifest["precisions"][ranked[0]]["file"]
    return f'{{ dtype: "fp32", model_file_name: "{file.removeprefix("onnx/").removesuffix(".onnx")}" }}'


def _text(manifest: dict[str, Any]) -> str:
    """A text behind the prompt, in Python or JavaScript."""
    return f'{json.dumps(manifest["prompt"])} + "a text"' if manifest["prompt"] else '"a text"'


def _names(manifest: dict[str, Any]) -> str:
    known = [
        f"`{DTYPES[precision]}` ({precision})" for precision in manifest["precisions"] if precision in DTYPES
    ]
    return f"The graphs are its dtypes {', '.join(known)}. " if known else ""


def _pipeline(manifest: dict[str, Any]) -> str:
    return (
        f"**transformers.js**. {_names(manifest)}{TRUNCATION}\n\n```js\n"
        'import { pipeline } from "@huggingface/transformers";\n\n'
        f'const embed = await pipeline("feature-extraction", "path/to/this/folder", {_dtype(manifest)});\n'
        f'const embeddings = await embed([{_text(manifest)}], {{ pooling: "mean", normalize: true }});\n```'
    )


def _javascript_model(manifest: dict[str, Any]) -> str:
    return (
        "**transformers.js**, as a model (its pipelines would pool the token embeddings in their own way). "
        f"{_names(manifest)}"
        f"{TRUNCATION}\n\n```js\n"
        'import { AutoModel, AutoTokenizer } from "@huggingface/transformers";\n\n'
        'const tokenizer = await AutoTokenizer.from_pretrained("path/to/this/folder");\n'
        f'const model = await AutoModel.from_pretrained("path/to/this/folder", {_dtype(manifest)});\n'
        f"const {{ sentence_embedding }} = await model(await tokenizer([{_text(manifest)}], {{ padding: "
        f"true, truncation: true }}));\n```"
    )


def _fastembed(manifest: dict[str, Any]) -> str:
    file = manifest["precisions"][fastest_first(manifest["precisions"], "int8_cpu")[0]]["file"]
    return (
        "**fastembed**, as a custom model:\n\n```python\n"
        "from fastembed import TextEmbedding\n"
        "from fastembed.common.model_description import ModelSource, PoolingType\n\n"
        f'source, name = ModelSource(url="file://"), "{manifest["name"]}"\n'
        "TextEmbedding.add_custom_model(\n"
        "    name, pooling=PoolingType.DISABLED, normalization=False, sources=source, "
        f"dim={manifest['dims'][0]}, "
        f'model_file="{file}"\n)\n'
        'list(TextEmbedding(name, specific_model_path="path/to/this/folder").embed(['
        f"{_text(manifest)}]))\n```"
    )


def _inference_server(manifest: dict[str, Any]) -> str:
    if "fp32" not in manifest["precisions"]:
        return ""
    return (
        "**Text Embeddings Inference** reads `onnx/model.onnx` (built with its ort backend; the layout is "
        "checked, the server was not run)."
    )


def _not_opened(manifest: dict[str, Any], libraries: list[str]) -> list[str]:
    """The line about libraries that cannot open the bundle, if there are any."""
    if "sentence-transformers" in libraries or "model2vec" in libraries:
        return []
    reasons = {
        "static": "a static student with fp32 and at most a linear head",
        "bilstm": "a transformer",
        "reduced": "a plain transformer",
    }
    needed = reasons.get(manifest["kind"], "a transformer whose embedding is not mapped further")
    return [f"sentence-transformers and optimum cannot open this bundle: they need {needed}."]
