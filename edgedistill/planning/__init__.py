"""A recipe goes in; its problems come out, and what it will cost, before anything is trained."""

__all__ = ["cost", "preflight"]
