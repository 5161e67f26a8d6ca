"""What embeddings are worth: suites that need nothing but encode(sentences) -> (N, D)."""
