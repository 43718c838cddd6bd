"""A model's name, a folder or a file of embeddings goes in; a teacher, its cached embeddings, and the
student's targets and scores come out."""

from typing import Any

__all__ = [
    "Embedder",
    "assistant",
    "embedder",
    "embedding_cache",
    "encoder",
    "precomputed_embeddings",
    "targets",
    "tokenizer_files",
    "tuple_scores",
]


def __getattr__(name: str) -> Any:
    """Embedder, looked up on first use: the cache does without torch."""
    if name != "Embedder":
        raise AttributeError(name)
    from edgedistill.teacher.embedder import Embedder

    return Embedder
