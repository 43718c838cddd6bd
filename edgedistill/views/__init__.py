"""A corpus goes in, another view of each of its texts comes out: translated there and back, refilled, from a
file, with synonyms."""

from edgedistill.views.cached_views import build, check
from edgedistill.views.synonyms import Synonyms

__all__ = ["Synonyms", "build", "check"]
