"""`adapt`."""
