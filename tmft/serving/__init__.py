"""Using a finished model: embeddings of large files, and a server."""
