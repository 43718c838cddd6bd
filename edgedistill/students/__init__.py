"""A shape goes in, a student module comes out; students share `forward(input_ids, attention_mask) -> (B, d)` and nothing else."""

__all__ = [
    "affine",
    "bert",
    "bert_layers",
    "bilstm",
    "classifier",
    "embedding_tables",
    "finite_weights",
    "head",
    "kinds",
    "model_folder",
    "modernbert",
    "narrow_bert",
    "output",
    "product_quantization",
    "recurrent",
    "relative_bias",
    "sentence_transformer",
    "shape_fields",
    "static",
]
