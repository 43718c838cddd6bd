"""Texts, pairs and tuples go in; the batches of token ids and target embeddings that a training step uses
come out."""
