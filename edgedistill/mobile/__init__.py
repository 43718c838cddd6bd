"""A bundle goes in, a mobile package comes out: texts in and embeddings out in one graph, the ORT format, and
what a phone can run; or, of a static student, one file that needs no onnxruntime."""

__all__ = ["package", "static_file"]
