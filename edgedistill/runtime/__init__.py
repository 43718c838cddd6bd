"""A bundle goes in, embeddings or labels come out: open, verify, encode and classify with numpy, tokenizers
and onnxruntime alone."""

__all__ = [
    "batching",
    "bundle",
    "bundle_location",
    "classification",
    "golden_file",
    "golden_texts",
    "manifest",
    "onnx_session",
    "progress",
    "similarity",
    "trust",
    "verify",
]
