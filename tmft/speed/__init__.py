"""What only makes it faster: without this folder the method is the same, up to rounding (tests/speed)."""
