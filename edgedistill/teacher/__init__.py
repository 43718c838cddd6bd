"""A model's name, a folder or a file of embeddings goes in; a teacher, its cached embeddings, and the
student's targets and scores come out."""

__all__ = [
    "assistant",
    "dimension_reduction",
    "embedding_cache",
    "encoder",
    "precomputed_embeddings",
    "targets",
    "tokenizer_files",
    "tuple_scores",
]
