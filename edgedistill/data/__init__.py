"""Files and data sets go in; distinct texts, pairs, tuples, views, labelled rows and their token ids come
out, kept on disk."""

__all__ = [
    "added_texts",
    "bm25",
    "cached_folder",
    "corpus",
    "deduplicate",
    "document_text",
    "file_patterns",
    "input_file",
    "labelled_tasks",
    "made_tuples",
    "readers",
    "rows",
    "token_cache",
]
