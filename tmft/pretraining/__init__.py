"""Pre-training on plain text: masked, replaced or next tokens."""
