"""Files in and out: the hub, weights, tokenizers, folders that other libraries open."""
