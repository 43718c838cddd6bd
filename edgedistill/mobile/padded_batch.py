"""The end of a tokenizer in a graph: flat token ids become a padded batch, truncated, with special tokens and attention mask."""

from __future__ import annotations

from onnx import TensorProto

from edgedistill.mobile.string_graph import StringGraph


def padded_batch(
    graph: StringGraph, flat: str, end_of_text: int, template: tuple[list[int], list[int]], max_tokens: int, pad_id: int
) -> None:
    """Add the nodes that make `input_ids` and `attention_mask`, int64 (batch, sequence).

    flat: (n) int64, the ids of all texts of the batch, `end_of_text` after each text. template: the ids before and after
    those of a text. The number of texts is that of the graph's input `texts`.
    """
    before, after = template
    room = max_tokens - len(before) - len(after)
    zero, one, end = graph.integers(0), graph.integers(1), graph.integers([-1])
    is_end = graph("Equal", flat, graph.integers(end_of_text))
    row_of_each = graph("CumSum", graph("Cast", is_end, to=TensorProto.INT64), zero, exclusive=1)
    tokens = graph("Reshape", graph("NonZero", graph("Not", is_end)), end)
    ids, rows = graph("Gather", flat, tokens), graph("Gather", row_of_each, tokens)
    texts = graph("Reshape", graph("Shape", "texts"), graph.integers([]))
    numbers = graph("Unsqueeze", graph("Range", zero, texts, one), graph.integers([1]))  # (batch, 1)
    belongs = graph("Cast", graph("Equal", graph("Unsqueeze", rows, graph.integers([0])), numbers), to=TensorProto.INT64)  # (batch, n)
    counts = graph("ReduceSum", belongs, graph.integers([1]), keepdims=0)
    starts = graph("CumSum", counts, zero, exclusive=1)
    total = graph("Reshape", graph("Shape", ids), graph.integers([]))
    places = graph("Sub", graph("Range", zero, total, one), graph("Gather", starts, rows))
    kept = graph("Reshape", graph("NonZero", graph("Less", places, graph.integers(room))), end)
    ids, rows, places = (graph("Gather", each, kept) for each in (ids, rows, places))
    lengths = graph("Unsqueeze", graph("Min", counts, graph.integers(room)), graph.integers([1]))  # (batch, 1), without the template
    longest = graph("ReduceMax", lengths, keepdims=0)
    width = graph("Add", longest, graph.integers(len(before) + len(after)))
    columns = graph("Range", zero, graph("Reshape", width, graph.integers([])), one)
    columns = graph("Unsqueeze", columns, graph.integers([0]))  # (1, sequence)
    where = graph("Concat", *(graph("Unsqueeze", each, end) for each in (rows, graph("Add", places, graph.integers(len(before))))), axis=1)
    shape = graph("Concat", graph("Shape", "texts"), graph("Reshape", width, end), axis=0)
    batch = graph("ScatterND", graph("Expand", graph.integers(pad_id), shape), where, ids)
    for column, token in enumerate(before):
        batch = graph("Where", graph("Equal", columns, graph.integers(column)), graph.integers(token), batch)
    for offset, token in enumerate(after):
        last = graph("Add", lengths, graph.integers(len(before) + offset))
        batch = graph("Where", graph("Equal", columns, last), graph.integers(token), batch)
    inside = graph("Less", columns, graph("Add", lengths, graph.integers(len(before) + len(after))))
    graph.output("input_ids", batch)
    graph.output("attention_mask", graph("Cast", inside, to=TensorProto.INT64))
