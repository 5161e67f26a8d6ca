"""Runs and sweeps: their configuration, the folder that a run writes, result.json and tables of runs."""
