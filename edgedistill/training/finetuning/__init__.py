"""A student and a labelled task go in; the student with a trained classifier head comes out."""
