"""A teacher, texts and a budget go in; the best student that keeps to the budget comes out: its recipe, its
bundle.
"""

__all__ = ["fit", "judge", "queries", "record", "shapes", "texts"]
