"""What each layer's quantization costs a run's embeddings, and what it saves, the worst layer first.

python bench/layer_losses.py RUN|MODEL [PRECISION, by default int8]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import onnx
from onnx import helper
from rich import box
from rich.table import Table

from edgedistill.errors import UserError
from edgedistill.evaluation.tables import plain
from edgedistill.export import model_source, parity
from edgedistill.quantization import Converter, converter, sample_texts
from edgedistill.run import Run
from edgedistill.session import Session, progress_bar
from edgedistill.students import graph

READERS = ("MatMul", "Gather", "LSTM", "Slice", "Reshape")  # of the weights that a precision may convert
Cost = dict[str, Any]  # {cosine_mean, cosine_min, saved_bytes}: of embeddings to fp32's, over all texts


def explain(run: Run, precision: str, session: Session) -> dict[str, Any]:
    """{name, precision, texts, cosine_mean, cosine_min, saved_bytes, layers}: of the whole graph, and of each
    layer quantized alone.

    A layer is {name, operator, shape, cosine_mean, cosine_min, saved_bytes, share}, named after the student's
    parameter. Its share is of all that is lost, 1 − cosine_mean over the sum of all layers': errors of
    different layers are nearly independent, so they add up. The layer that loses most comes first. Nothing is
    written. Raises UserError for an unknown precision, for fp32 and for a classifier.
    """
    if precision == "fp32":
        raise UserError("fp32 converts nothing, so nothing is lost; choose another precision")
    if run.labels:
        way_out = "give the run that it was fine-tuned from"
        raise UserError(f"{run.folder}: a classifier, and embeddings are compared; {way_out}")
    reader = parity.reader(run)
    golden_ids = reader.token_ids(reader.golden_texts())
    measured = sample_texts.samples(reader, golden_ids)
    ids = golden_ids + reader.token_ids(sample_texts.suite_sentences()[::2])
    model = graph.build(run.student())
    session.log(
        f"{precision}: quantizing each layer alone, on {len(ids)} texts; this takes minutes for six layers"
    )
    whole, alone = costs(model, converter(model, precision, measured), ids, session.progress)
    lost = sum(1 - cost["cosine_mean"] for cost in alone.values()) or 1.0
    readers = {name: node for node in reversed(model.graph.node) for name in node.input}
    shapes = {constant.name: tuple(constant.dims) for constant in model.graph.initializer}
    layers = [
        {"name": name, "operator": readers[name].op_type, "shape": shapes[name]}
        | cost
        | {"share": round((1 - cost["cosine_mean"]) / lost, 4)}
        for name, cost in sorted(alone.items(), key=lambda item: (item[1]["cosine_mean"], item[0]))
    ]
    about = {"name": run.recipe.name, "precision": precision, "texts": len(ids)}
    return about | whole | {"layers": layers}


def convert_except(convert: Converter, model: onnx.ModelProto, skip: Iterable[str]) -> onnx.ModelProto:
    """`convert(model)`, with the constants named in `skip` and the nodes that read them left as they are.

    Converters look for constants, so these are inputs of the graph while a converter runs. An LSTM has two
    matrices and is converted whole or not at all: naming one is enough. Raises KeyError for a name that is no
    constant of the graph.
    """
    names = set(skip)
    constants = {constant.name: constant for constant in model.graph.initializer}
    if unknown := names - constants.keys():
        raise KeyError(f"no constants of this graph: {', '.join(sorted(unknown))}")
    for node in model.graph.node:
        if node.op_type == "LSTM" and names & set(node.input[1:3]):
            names |= set(node.input[1:3])
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    for name in sorted(names):
        constant = constants[name]
        hidden.graph.initializer.remove(constant)
        hidden.graph.input.append(helper.make_tensor_value_info(name, constant.data_type, constant.dims))
    quantized = convert(hidden)
    for value in [value for value in quantized.graph.input if value.name in names]:
        quantized.graph.input.remove(value)
        quantized.graph.initializer.append(constants[value.name])
    return quantized


def converted(model: onnx.ModelProto, quantized: onnx.ModelProto) -> list[str]:
    """The weights that a conversion converted, in the order of the graph."""
    matrices = {constant.name for constant in model.graph.initializer if len(constant.dims) > 1}
    changed = matrices - {constant.name for constant in quantized.graph.initializer}
    # the data of a lookup; the matrix of a product; W of an LSTM, whose R goes with it
    read = [name for node in model.graph.node if node.op_type in READERS for name in node.input[:2]]
    return [name for name in dict.fromkeys(read) if name in changed]


def costs(
    model: onnx.ModelProto, convert: Converter, ids: sample_texts.TokenIds, progress: bool = False
) -> tuple[Cost, dict[str, Cost]]:
    """The cost of converting an fp32 graph, and of each weight that this converts, by itself.

    `ids` are the token ids of texts. An LSTM is one layer, under the name of its W. The graph is opened and
    run once for each layer, once converted and once as it is.
    """
    quantized, expected = convert(model), sample_texts.embeddings(model, ids)
    names = converted(model, quantized)

    def cost(changed: onnx.ModelProto) -> Cost:
        mean, least = (round(each, 6) for each in sample_texts.agreement(changed, expected, ids))
        saved = model.ByteSize() - changed.ByteSize()
        return {"cosine_mean": mean, "cosine_min": least, "saved_bytes": saved}

    alone = {}
    with progress_bar(len(names), progress, "quantizing", "layers") as advance:
        for name in names:
            alone[name] = cost(convert_except(convert, model, [each for each in names if each != name]))
            advance(1)
    return cost(quantized), alone


def table(found: dict[str, Any]) -> str:
    """An explanation as a table for the terminal."""
    title = (
        f"{found['name']}, {found['precision']}: each layer quantized alone, cosine to fp32 on "
        f"{found['texts']} texts"
    )
    sheet = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for head in ("layer", "operator"):
        sheet.add_column(head, no_wrap=True)
    for head in ("shape", "cosine, mean", "min", "share of the loss", "kB saved"):
        sheet.add_column(head, justify="right", no_wrap=True)
    whole = {**found, "name": "all together", "operator": "", "shape": (), "share": 1.0}
    for row in [*found["layers"], whole]:
        sheet.add_row(
            row["name"].removeprefix("model.").removesuffix(".T").removesuffix(".weight"),
            row["operator"],
            " × ".join(map(str, row["shape"])),
            f"{row['cosine_mean']:.6f}",
            f"{row['cosine_min']:.5f}",
            f"{row['share']:.1%}",
            f"{row['saved_bytes'] / 1e3:,.1f}",
        )
    return plain(sheet, 120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a run's folder, or a model as export takes it")
    parser.add_argument("precision", nargs="?", default="int8")
    asked = parser.parse_args()
    with model_source.opened(asked.source) as run:
        print(table(explain(run, asked.precision, Session(progress=sys.stderr.isatty()))))
