"""A shape goes in, a student module comes out; students share `forward(input_ids, attention_mask) -> (B, d)` and nothing else."""

__all__ = [
    "affine",
    "bert",
    "bilstm",
    "classifier",
    "embedding_tables",
    "fake_quantization",
    "head",
    "kinds",
    "narrow_bert",
    "output",
    "product_quantization",
    "recurrent",
    "rounding",
    "sentence_transformer",
    "static",
]
