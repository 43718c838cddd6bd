"""A bundle goes in, a mobile package comes out: texts in and embeddings out in one graph, the ORT format, and
what a phone can run."""

__all__ = ["package"]
