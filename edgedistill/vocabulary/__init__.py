"""A tokenizer and texts go in; a learned or trimmed tokenizer comes out, and the embedding table that fits
it."""

__all__ = [
    "initial_embeddings",
    "learn_tokenizer",
    "trim_tokenizer",
]
