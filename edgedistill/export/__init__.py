"""A run goes in, a bundle comes out: graphs in several precisions, compared with torch, and a model card."""

__all__ = [
    "bundle_writer",
    "library_files",
    "model_card",
    "model_source",
    "pair_bundle",
    "parity",
]
