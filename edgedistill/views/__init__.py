"""A corpus goes in, another view of each of its texts comes out: translated there and back by a model."""

__all__ = ["model_views"]
