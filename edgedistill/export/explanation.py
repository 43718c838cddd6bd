"""`export --explain`: what each layer's quantization costs a run's embeddings, and what it saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.table import Table

from edgedistill.errors import UserError
from edgedistill.evaluation.tables import plain
from edgedistill.export import model_source, parity
from edgedistill.precisions import known_precisions
from edgedistill.quantization import converter, sensitivity
from edgedistill.quantization.sample_texts import samples, suite_sentences
from edgedistill.run import Run
from edgedistill.session import Session, progress_bar
from edgedistill.students import graph


def of(
    source: str, precision: str, session: Session, pooling: str | None = None, revision: str | None = None
) -> dict[str, Any]:
    """`explain` of a run or a model, as `bundle_writer.export` takes it."""
    with model_source.opened(source, pooling, revision, session.remote_code) as run:
        return explain(run, precision, session)


def explain(run: Run, precision: str, session: Session) -> dict[str, Any]:
    """{name, precision, texts, cosine_mean, cosine_min, saved_bytes, layers}: of the whole graph, and of each
    layer quantized alone.

    Layers are sorted by their cosine to fp32, the worst first. Nothing is written. Raises UserError for an
    unknown precision, for fp32 and for a classifier.
    """
    known_precisions([precision])
    if precision == "fp32":
        raise UserError(
            "--precision: fp32 converts nothing, so there is nothing to explain; choose another precision"
        )
    if run.labels:
        raise UserError(
            f"{run.folder}: a classifier; --explain compares embeddings: explain the run that it was "
            "fine-tuned from"
        )
    reader = parity.reader(run)
    golden_ids = reader.token_ids(reader.golden_texts())
    measured, ids = samples(reader, golden_ids), golden_ids + reader.token_ids(suite_sentences()[::2])
    model = graph.build(run.student())
    session.log(
        f"{precision}: quantizing each layer alone, on {len(ids)} texts; this takes minutes for six layers"
    )

    def tracked(names: Sequence[str]) -> Iterator[str]:
        with progress_bar(len(names), session.progress, "quantizing", "layers") as advance:
            for name in names:
                yield name
                advance(1)

    found = sensitivity.costs(model, converter(model, precision, measured), ids, track=tracked)
    whole, layers = (
        _rounded(found.whole),
        [_rounded(layer) | {"share": round(layer.share, 4)} for layer in found.layers],
    )
    shared = {key: whole[key] for key in ("cosine_mean", "cosine_min", "saved_bytes")}
    return {"name": run.recipe.name, "precision": precision, "texts": len(ids), **shared, "layers": layers}


def _rounded(cost: sensitivity.LayerCost) -> dict[str, Any]:
    return {
        **cost._asdict(),
        "cosine_mean": round(cost.cosine_mean, 6),
        "cosine_min": round(cost.cosine_min, 6),
    }


def table(found: dict[str, Any]) -> str:
    """An explanation as a table for the terminal."""
    title = (
        f"{found['name']}, {found['precision']}: each layer quantized alone, cosine to fp32 on "
        f"{found['texts']} texts"
    )
    sheet = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    sheet.add_column("layer", no_wrap=True)
    sheet.add_column("operator", no_wrap=True)
    for head in ("shape", "cosine, mean", "min", "share of the loss", "kB saved"):
        sheet.add_column(head, justify="right", no_wrap=True)
    for layer in found["layers"]:
        shape = " × ".join(map(str, layer["shape"]))
        sheet.add_row(
            layer["label"],
            layer["operator"],
            shape,
            *_numbers(layer),
            f"{layer['share']:.1%}",
            _kilobytes(layer),
        )
    sheet.add_section()
    sheet.add_row("all together", "", "", *_numbers(found), "", _kilobytes(found))
    return plain(sheet, 120)


def _numbers(entry: dict[str, Any]) -> tuple[str, str]:
    return f"{entry['cosine_mean']:.6f}", f"{entry['cosine_min']:.5f}"


def _kilobytes(entry: dict[str, Any]) -> str:
    return f"{entry['saved_bytes'] / 1e3:,.1f}"
