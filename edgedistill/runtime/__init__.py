"""A bundle goes in, embeddings or labels come out: open, verify, encode and classify with numpy, tokenizers
and onnxruntime alone."""

__all__ = [
    "batching",
    "bundle",
    "bundle_location",
    "classification",
    "golden_file",
    "manifest",
    "onnx_session",
    "similarity",
    "trust",
    "verify",
]
