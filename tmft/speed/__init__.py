"""Code that only saves time: without it, all results are the same up to rounding (see tests/speed)."""
