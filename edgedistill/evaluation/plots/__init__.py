"""Plots of reports as SVG: accuracy against latency, latency distributions, scores retained; and the README's
plot."""
