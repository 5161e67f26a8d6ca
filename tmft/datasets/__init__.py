"""Official releases of data sets -> the canonical TSV files of tmft/data.py."""
