"""Texts, pairs and triples go in; the batches of token ids and target embeddings that a training step uses
come out."""
