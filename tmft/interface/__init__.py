"""The interface in Python: the whole method in one call."""
