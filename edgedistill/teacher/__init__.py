"""A name, a folder or a file goes in; a teacher comes out, its cached embeddings, and the targets made of them."""

__all__ = ["assistant", "embedding_cache", "encoder", "precomputed", "targets"]
