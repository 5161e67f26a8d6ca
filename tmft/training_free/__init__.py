"""Embeddings without training: post-processing, static models, and which variant is best."""
