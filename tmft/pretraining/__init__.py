"""Pre-training on plain text: masked or replaced tokens."""
