"""Reports as one self-contained HTML file: a summary, plots and tables; light and dark."""
