"""Bundles or encoders go in; scores, latencies, reports and pages come out."""

__all__ = ["bench", "scoring", "speed"]
