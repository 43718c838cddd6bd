"""Bundles or encoders go in; scores, latencies, reports, tables, plots and pages come out."""

__all__ = [
    "bench",
    "bootstrap",
    "comparison",
    "page",
    "report",
    "scoring",
    "speed",
    "suites",
    "tables",
    "teacher_agreement",
]
