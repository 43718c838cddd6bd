"""A teacher, texts and a budget go in; the best student that keeps to the budget comes out: its recipe, its
bundle, a page.
"""

__all__ = ["cost", "fit", "judge", "queries", "record", "shapes", "texts"]
