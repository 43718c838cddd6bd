"""A fine-tuned student as a bundle: its graph of logits, the awkward items every runner must repeat, and what a precision may move.

Inputs `input_ids`, `attention_mask` (B, T), of pairs also `input_ids_2`, `attention_mask_2` (B, T₂); output `logits` (B, C). Both texts of
a pair go through the encoder together, in one batch of 2B padded to the longer of the two: its weights and nodes are there once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

from edgedistill import graph
from edgedistill.data.labelled import Item
from edgedistill.errors import AnswerIsNo
from edgedistill.run import Run
from edgedistill.runtime import bundle, verify
from edgedistill.students.classifier import Classifier

INPUTS = ("input_ids", "attention_mask", "input_ids_2", "attention_mask_2")
SHAPES = ((1, 1, 0), (1, 0, 3), (3, 7, 7), (17, 33, 5))  # (batch, tokens, tokens of the second text); 0 stands for the longest
WITHIN = {  # how far a probability may be from torch's: float32's other order; 8 bits, which only a text near the border notices
    "fp32": 1e-3,
    "w8": 0.10,
    "int8": 0.35,
}
BEHIND = {"embedding": "in the embeddings", "encoder": "in the encoder", "head": "behind it"}
OTHERS = {"fp32": "a bug in the graph, please report it", "w8": "try --precision fp32", "int8": "try --precision w8"}


class Golden(NamedTuple):
    """What every runner must give: items, the token ids of each text of them, and logits by torch, each item alone."""

    items: list[Item]
    ids: list[list[list[int]]]
    logits: np.ndarray


def build(student: Classifier, pad: int) -> onnx.ModelProto:
    """Write the graph of logits. `pad`: the id that fills the shorter text of a pair."""
    model = graph.build(student.encoder)
    inner = model.graph
    unit = next(node for node in inner.node if "sentence_embedding" in node.output)
    assert unit.op_type == "Div", "the last node scales rows to unit length"
    rows, writer, before = unit.input[0], graph.GraphWriter(first=2_000_000), []
    if student.pair:
        joined = _joined(writer, pad)
        before = list(writer.nodes)
        writer.nodes.clear()
        for node in inner.node:
            for at, name in enumerate(node.input):
                node.input[at] = joined.get(name, name)
        u, v = writer.add("Split", rows, outputs=["first_text", "second_text"], axis=0), "second_text"
        parts = [u, v, writer.add("Abs", writer.add("Sub", u, v)), writer.add("Mul", u, v)]
        rows = writer.add("Concat", *parts, axis=-1)
    hidden = writer.add("Relu", writer.linear(rows, student.hidden, "hidden"))
    out = writer.linear(hidden, student.out, "out")
    writer.add("Identity", out, outputs=["logits"])
    nodes = _needed([*before, *inner.node, *writer.nodes], "logits")
    used = {name for node in nodes for name in node.input}
    constants = [constant for constant in [*inner.initializer, *writer.constants] if constant.name in used]
    names = INPUTS[: 4 if student.pair else 2]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence" + name[-2:] * (name[-1] == "2")]) for name in names
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", student.out.out_features])]
    made = helper.make_graph(nodes, "classifier", inputs, outputs, constants)
    opsets = {(entry.domain, entry.version) for entry in model.opset_import}
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets)]
    final = helper.make_model(made, opset_imports=imports, ir_version=model.ir_version, producer_name="edgedistill")
    onnx.checker.check_model(final)
    return final


def _joined(writer: graph.GraphWriter, pad: int) -> dict[str, str]:
    """Both texts under each other, (2B, max(T, T₂)): the names that stand for the encoder's inputs."""
    widths = [writer.add("Shape", name, start=1, end=2) for name in ("input_ids", "input_ids_2")]
    widest, out = writer.add("Max", *widths), {}
    for first, second, filler in (("input_ids", "input_ids_2", pad), ("attention_mask", "attention_mask_2", 0)):
        parts = []
        for name, width in ((first, widths[0]), (second, widths[1])):
            more = writer.add("Concat", writer.constant([0, 0, 0], "none"), writer.add("Sub", widest, width), axis=0)
            parts.append(writer.add("Pad", name, more, writer.constant(np.int64(filler), "filler")))
        out[first] = writer.add("Concat", *parts, axis=0)
    return out


def _needed(nodes: list[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """The nodes that lead to an output, in order."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if wanted & set(node.output):
            wanted |= set(node.input)
            kept.append(node)
    return kept[::-1]


def compare(student: Classifier, model: onnx.ModelProto, longest: int, pieces: int) -> float:
    """The largest difference of a probability between torch and the graph over SHAPES; ids below `pieces`, padded rows included."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    random, worst = np.random.default_rng(0), 0.0
    for batch, *widths in SHAPES:
        given: list[np.ndarray] = []
        for width in (min(each or longest, longest) for each in widths[: 1 + student.pair]):
            mask = (np.arange(width) < random.integers(1, width + 1, (batch, 1))).astype(np.int64)
            given += [random.integers(0, pieces, (batch, width)), mask]
        with torch.inference_mode():
            expected = student(*(torch.from_numpy(each) for each in given)).numpy()
        try:
            found = session.run(["logits"], dict(zip(INPUTS, given, strict=False)))[0]
        except graph.ORT_ERRORS as error:
            raise AnswerIsNo(f"the graph does not run at batch {batch}, {widths[0]} tokens: {error}") from None
        worst = float(np.maximum(worst, bundle.apart(found, expected).max()))  # keeps NaN
    return worst


def golden(run: Run, student: Classifier, awkward: Callable[[Callable[[str], int], int], list[str]]) -> Golden:
    """The awkward texts, of pairs each with the next but one, as torch and transformers see them, from the run's own folder."""
    words: Any = run.tokenizer()
    texts = awkward(lambda text: len(words(run.prompt + text, verbose=False)["input_ids"]), run.max_tokens)
    items: list[Item] = [(text, texts[(at + 2) % len(texts)]) if student.pair else (text,) for at, text in enumerate(texts)]
    ids = [[words(run.prompt + text, truncation=True, max_length=run.max_tokens)["input_ids"] for text in item] for item in items]
    with torch.inference_mode():
        rows = [
            student(*(given for row in each for given in (torch.tensor([row]), torch.ones((1, len(row)), dtype=torch.long))))
            for each in ids
        ]
    return Golden(items, ids, torch.cat(rows).numpy())


def parity_file(run: Run, golden: Golden, precisions: list[str]) -> dict[str, Any]:
    """parity.json: what any runner in any language can repeat."""
    return {
        "about": "item i (a text, or a pair) -> ids i of each of its texts (alone, uncut batch) -> logits i by torch in float32",
        "labels": run.labels,
        "probability_within": {precision: WITHIN[precision] for precision in precisions},
        "texts": golden.items,
        "ids": golden.ids,
        "logits": [[round(value, 6) for value in row] for row in golden.logits.astype(np.float64).tolist()],
    }


def compared(opened: bundle.Bundle, golden: Golden, out: str) -> dict[str, Any]:
    """{parity, drift} of one precision. Raises AnswerIsNo where token ids differ, or a probability by more than WITHIN."""
    ids = opened.tokenize_items(golden.items)
    for at, (found, expected) in enumerate(zip(ids, golden.ids, strict=True)):
        if [row.tolist() for row in found] != expected:
            raise AnswerIsNo(
                f"{out} was not written: {_which(golden, at)} became other token ids in the bundle than in the run; tokenizer.json does "
                "not say all that the run's tokenizer does",
                {"text": at, "ids": [row.tolist() for row in found], "expected": expected},
            )
    alone = np.concatenate([opened.logits_ids([item]) for item in ids])
    batched = opened.logits_ids(ids, batch_tokens=2 * len(ids) * opened.max_tokens)
    within = WITHIN[opened.precision]
    for rows, how in ((alone, ""), (batched, " in a batch with the others")):
        difference = bundle.apart(rows, golden.logits)
        at = int(np.argmax(difference))
        if not difference[at] <= within:
            raise AnswerIsNo(
                f"{out} was not written: {_which(golden, at)} came back with a probability {difference[at]:.4f} off{how}, "
                f"{opened.precision} may move it by {within}; token ids agree, so the loss is in the arithmetic: "
                + OTHERS[opened.precision],
                {"text": at, "apart": float(difference[at]), "allowed": within},
            )
    difference, moved = bundle.apart(alone, golden.logits), bundle.apart(alone, batched)
    return {
        "parity": {
            "apart_mean": round(float(difference.mean()), 6),
            "apart_max": round(float(difference.max()), 6),
            "labels_kept": round(float((alone.argmax(1) == golden.logits.argmax(1)).mean()), 4),
            "threshold": within,
        },
        "drift": {"mean": round(1 - float(moved.mean()), 6), "min": round(1 - float(moved.max()), 6)},
    }


def _which(golden: Golden, at: int) -> str:
    return f"item {at + 1} of {len(golden.items)} ({verify.quoted(golden.items[at][0])})"


def line(precision: str, found: dict[str, Any]) -> str:
    """What export says of a precision."""
    parity = found["parity"]
    return (
        f"{precision}: {found['size_bytes'] / 1e6:.2f} MB; probabilities within {parity['apart_max']:.4f} of torch's, "
        f"{parity['apart_mean']:.4f} on average"
    )


def card(manifest: dict[str, Any]) -> str:
    """The bundle's README.md."""
    parameters, pair = manifest["parameters"], len(manifest["inputs"]) == 4
    head = "---\nlibrary_name: onnx\npipeline_tag: text-classification\ntags: [text-classification, edgedistill, onnx]\n---"
    labels = ", ".join(f"`{label}`" for label in manifest["labels"])
    what = "a pair of texts" if pair else "a text"
    about = f"{manifest['recipe']['about']}\n\n" if manifest["recipe"].get("about") else ""
    lines = ["| precision | file | MB | a probability's distance from torch's, mean | max |", "|---|---|---|---|---|"]
    for precision, entry in manifest["precisions"].items():
        parity = entry["parity"]
        size = f"{entry['size_bytes'] / 1e6:.2f}"
        lines.append(f"| {precision} | `{entry['file']}` | {size} | {parity['apart_mean']:.5f} | {parity['apart_max']:.5f} |")
    given = '[("a text", "another")]' if pair else '["a text"]'
    inputs = ", ".join(f"`{name}`" for name in manifest["inputs"])
    use = (
        "## Use\n\n```python\nimport edgedistill\n\n"
        f'labels, probabilities = edgedistill.load("path/to/this/folder").classify({given})\n```\n\n'
        f"Any runtime of ONNX models with onnxruntime's operators: inputs {inputs} (int64), output `logits`, one a label in the order "
        "above. `parity.json` holds items, ids and logits to test a runner with; `edgedistill verify` does."
    )
    counts = ", ".join(f"{parameters[key]:,} {where}" for key, where in BEHIND.items())
    parts = [
        f"{head}\n\n# {manifest['name']}",
        f"{about}Says of {what} of up to {manifest['max_tokens']} tokens which of {labels} it is.\n\n"
        f"{parameters['total']:,} parameters: {counts}.",
        "\n".join(lines),
        use,
        f"## Made\n\nFine-tuned by the recipe `{manifest['recipe']['name']}`; all of it, and what it scored, is in `manifest.json`.",
    ]
    return "\n\n".join(parts) + "\n"
