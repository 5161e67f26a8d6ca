"""Pre-training on plain text: masked language modelling and replaced-token detection."""
