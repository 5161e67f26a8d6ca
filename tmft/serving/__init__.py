"""Using a finished model: export, upload to the hub, embedding of large files, search, quantization."""
