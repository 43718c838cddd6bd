"""A kind of student is one file: shape, module, initial weights, graph. All share `forward(input_ids,
attention_mask) -> (B, d)`."""

__all__ = [
    "bert",
    "bert_layers",
    "bilstm",
    "classifier",
    "embedding_tables",
    "finite_weights",
    "graph",
    "graph_writer",
    "head",
    "kind",
    "kinds",
    "model_folder",
    "narrow_bert",
    "pooling",
    "recurrent",
    "sentence_transformer",
    "static",
]
