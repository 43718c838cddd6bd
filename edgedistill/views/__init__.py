"""A corpus goes in, another view of each of its texts comes out: refilled or translated there and back by a
model, or with WordNet's synonyms."""

__all__ = ["model_views", "synonyms"]
