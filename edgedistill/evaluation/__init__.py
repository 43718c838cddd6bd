"""Bundles or encoders go in; scores, latencies, reports, tables, plots and pages come out."""

__all__ = [
    "bench",
    "classification_metrics",
    "page",
    "report",
    "scoring",
    "speed",
    "tables",
    "teacher_agreement",
]
