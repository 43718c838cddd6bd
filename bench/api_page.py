"""The API page, export/python/API.md: signatures and docstrings of what edgedistill offers, by griffe2md."""

from __future__ import annotations

import re
from pathlib import Path

import griffe
import griffe2md

import edgedistill

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "export" / "python" / "API.md"
BESIDE = ("runtime.bundle.PairBundle", "runtime.bundle.ClassifierBundle")  # what `load` returns too
INTERNAL = r"!^(embedding_dim|item_rows|not_read|fallback|graph_file|\w+_ids|of|unknown_(id|tokens))$"
# where a signature of several parameters is wrapped: before each of them
PARAMETER = r"(?<=\()(?=\**\w+: .*, \**\w+: .*\) -> )|(?<=,) (?=\**\w+: .*\) -> )"
HEAD = """# The Python API

Open a bundle, embed texts with it, compare and search. A *bundle* is a folder with a small encoder: its tokenizer, and its ONNX graph in one or more [precisions](../README.md#precisions). Install edgedistill with `pip install .` in a clone of this repository; it needs no torch. To train, adapt, export and measure, use the commands (`edgedistill --help`). This page is generated from docstrings by `make docs`.

    >>> import edgedistill
    >>> encoder = edgedistill.load("nano")
    >>> texts = ["A cat sleeps.", "The train leaves at nine.", "Soup is served hot."]
    >>> rows = encoder.encode_document(texts)
    >>> rows.shape, rows.dtype
    ((3, 384), dtype('float32'))
    >>> indices, cosines = encoder.search("When does the train go?", rows, k=1)
    >>> texts[indices[0]]
    'The train leaves at nine.'

The other examples continue this one. A test runs them.

A student reads `max_tokens` of a text, 256 in most, and ignores the rest. So split long documents, and keep for each part which document it is of:

    >>> files = {"trains.txt": "The train leaves at nine. " * 50, "soup.txt": "Soup is served hot."}
    >>> parts = [(name, part) for name, text in files.items() for part in encoder.passages(text)]
    >>> part_rows = encoder.encode_document([part for _, part in parts])
    >>> indices, cosines = encoder.search("When does the train go?", part_rows, k=1)
    >>> parts[indices[0]][0]
    'trains.txt'

| to | use |
| --- | --- |
| open a bundle | [`load`](#load) |
| embed queries and documents for search | [`encode_query`](#bundleencode_query), [`encode_document`](#bundleencode_document) |
| embed texts to compare with each other, such as duplicates or clusters | [`encode`](#bundleencode) |
| compare embeddings | [`similarity`](#similarity) |
| search | [`Bundle.search`](#bundlesearch); [`search`](#search) for embeddings alone, and for binary ones. Both rank by cosine; [by meaning and by words](INTEGRATIONS.md#by-meaning-and-by-words) |
| split texts that are too long | [`passages`](#bundlepassages), [`token_counts`](#bundletoken_counts) |
| label texts | [`classify`](#classifierbundleclassify) |
| list the students that ship | [`shipped`](#shipped) |
| catch errors | [`UserError`](#usererror), [`CheckFailed`](#checkfailed) |

Embeddings are numpy arrays. Their rows have unit length, so the dot product of two is their cosine. The methods are named as in sentence-transformers; their options differ:

| sentence-transformers | here |
| --- | --- |
| `batch_size`, in texts | `batch_tokens`, in tokens |
| `show_progress_bar` | `progress` |
| `truncate_dim` | `dim` |
| `prompt_name` | `role` |
| `precision="ubinary"` | `precision="binary"` |
| `normalize_embeddings` | always |
| `util.semantic_search(…, top_k)` | `search(…, k)` |

Types in the signatures: `Calibration` is what `Bundle.calibration` holds, and `PLAIN` that of a bundle whose manifest has none. `Item` is a string, or a pair of strings. `Classification` is a named tuple (labels, probabilities). `Json` is a dict.

Before you store embeddings, read [when to embed again](../README.md#what-an-index-survives) and [what int8 and binary cost](../DESIGN.md#embeddings-in-fewer-bytes).
"""  # noqa: E501


def page() -> str:
    """The page as Markdown."""
    package = griffe.load("edgedistill", search_paths=[str(ROOT)])
    first, bundle, *others = edgedistill.__all__
    config = griffe2md.ConfigDict(
        docstring_style=None,
        filters=["!^_", INTERNAL],
        inherited_members=False,
        members_order="source",
        merge_init_into_class=False,
        show_root_full_path=False,
        show_root_members_full_path=False,
        show_object_full_path=False,
        show_bases=False,
        show_signature_annotations=True,
        show_if_no_docstring=False,
        summary=False,
    )
    parts = [HEAD]
    for path in (first, bundle, *BESIDE, *others):
        found = package[path]
        for each in (found, *found.members.values()):
            if each.docstring:
                each.docstring.value = _listed(each.docstring.value)
        text = griffe2md.render_object_docs(found, config).replace("\n### `", f"\n### `{found.name}.")
        parts.append(re.sub(PARAMETER, "\n    ", text).strip() + "\n")
    return "\n".join(parts)


def _listed(docstring: str) -> str:
    """A docstring whose lines *name: what it is* are a list."""
    return re.sub(r"^(\w+(?:, \w+)*): ", r"- `\1`: ", docstring, flags=re.MULTILINE)
