"""A bundle goes in; a server with OpenAI's embeddings API comes out, whose requests share batches."""

__all__ = ["server"]
