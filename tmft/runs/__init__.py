"""Runs and sweeps: what is to be done, the folder that a run leaves, tables and figures of many."""
