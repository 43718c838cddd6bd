"""Texts, pairs and triples go in; the batches of token ids and teacher embeddings that a step reads come out."""
