"""Using a finished model: embeddings of large files, search, and a server."""
