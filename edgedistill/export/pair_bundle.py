"""Two encoders of one space -> a pair bundle: queries by one, documents by the other."""

from __future__ import annotations

from pathlib import Path

from edgedistill import files, resolve
from edgedistill.errors import UserError
from edgedistill.evaluation import teacher_agreement
from edgedistill.export import bundle_writer, model_card
from edgedistill.export.model_source import Source
from edgedistill.files import Json
from edgedistill.quantization import sample_texts
from edgedistill.runtime import bundle
from edgedistill.runtime import manifest as manifests
from edgedistill.runtime.bundle import SIDES
from edgedistill.session import Log

TEXTS = 100  # English sentences, by which the two encoders are compared


def export(
    query: Source, document: Source, precisions: list[str], out: Path, log: Log, mean: bool = False
) -> Json:
    """Write a pair bundle at `out`, atomically. Returns {name, dims, cosine, precisions: {query, document}}
    with the sizes in bytes of their graphs. With `mean` documents are embedded by both encoders.

    Each source is a run or a model, which is exported in these precisions, or a bundle, which is copied
    whole. Raises as `bundle_writer.export`, and UserError for a classifier, a pair, and where the two
    encoders do not give about the same embedding of a text, so that no query would find its documents.
    """
    with files.new_folder(out) as folder:
        for side, source in zip(SIDES, (query, document), strict=True):
            _write_side(source, precisions, folder / side, log)
        opened = [bundle.load(folder / side) for side in SIDES]
        texts = sample_texts.suite_sentences()[:TEXTS]
        cosine, fact = teacher_agreement.space(*(encoder.encode_query(texts) for encoder in opened))
        if fact is not None:
            raise UserError(
                f"{query.name} for {document.name}: {fact}; pair a student with its teacher, or with another "
                "student of that teacher"
            )
        pair = {
            "schema": manifests.SCHEMA,
            "name": out.name,
            "kind": manifests.PAIR,
            "made_at": bundle_writer.made_at(),
            "cosine": round(cosine, 4),
        }
        pair |= {"documents": manifests.MEAN} if mean else {}
        sides = {side: encoder.manifest for side, encoder in zip(SIDES, opened, strict=True)}
        card = model_card.filled("pair", pair, **sides)
        files.write_text(folder / "README.md", card)
        bundle_writer.seal(folder, pair)
        bundle.load(folder)
        if out.exists():
            log(f"{out}: replaces the existing bundle")
    sizes = {
        side: {name: entry["size_bytes"] for name, entry in about["precisions"].items()}
        for side, about in sides.items()
    }
    log(f"{out}: mean cosine of the two encoders on {TEXTS} sentences {cosine:.3f} (1: alike)")
    log(f"measure what queries find: edgedistill bench {out} --suite retrieval")
    return {"name": out.name, "dims": opened[0].dims, "cosine": pair["cosine"], "precisions": sizes}


def _write_side(source: Source, precisions: list[str], folder: Path, log: Log) -> None:
    """Export a run or a model, or copy a bundle."""
    resolved = resolve.resolve(source.name)
    if not isinstance(resolved, resolve.BundleFolder):
        bundle_writer.export(source, precisions, folder, log)
        return
    about = manifests.read(resolved.folder)
    if resolved.precision is not None:
        raise UserError(f"{source.name}: a bundle is copied whole; leave :{resolved.precision} out")
    if about["kind"] == manifests.PAIR or about.get("labels"):
        raise UserError(
            f"{source.name}: {'a classifier' if about.get('labels') else 'a pair itself'}; a pair is made of "
            "two encoders, give one"
        )
    bundle_writer.copy(resolved.folder, folder)
