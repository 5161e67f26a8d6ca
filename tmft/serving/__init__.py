"""Use of a finished model: export, upload to the hub, embedding large files, search, quantization."""
