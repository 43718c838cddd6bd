"""A bundle goes in, embeddings come out: open, verify and encode with numpy, tokenizers and onnxruntime
alone."""

__all__ = [
    "arguments",
    "batching",
    "bundle",
    "bundle_location",
    "compact",
    "golden_file",
    "graph_weights",
    "manifest",
    "onnx_session",
    "prompts",
    "sentences",
    "similarity",
    "trust",
    "verify",
]
