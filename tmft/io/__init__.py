"""Plain files: atomic writes and locks, TSV and text, values of JSON, paths."""
