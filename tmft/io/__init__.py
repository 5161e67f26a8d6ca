"""Read and write files: atomic writes and locks, TSV and text files, values in JSON files, data folders."""
