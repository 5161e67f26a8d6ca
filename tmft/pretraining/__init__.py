"""Pre-training on plain text: masked, replaced or next tokens, or spans that have been cut out."""
