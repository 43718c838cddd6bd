"""A bundle goes in, embeddings come out: open, verify and encode with numpy, tokenizers and onnxruntime alone."""

__all__ = ["bundle", "embed_file", "verify"]
