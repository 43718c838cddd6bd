"""Files and data sets go in; distinct texts, pairs, triples, labelled rows and their token ids come out, kept on disk."""

__all__ = ["corpus", "deduplicate", "labelled_tasks", "parallel_corpus", "readers", "token_cache", "triples"]
