"""Downloading and converting official releases of data sets to the TSV files that tmft/data.py reads."""
