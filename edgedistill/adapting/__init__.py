"""A finished student and somebody's own texts go in; a student that knows these texts, its bundle and a
comparison come out."""

__all__ = ["adapt"]
