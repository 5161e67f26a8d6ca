"""Using a finished model: embeddings of large files, search, a server, and an adapter for mteb."""
