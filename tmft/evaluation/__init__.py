"""Evaluation of sentence embeddings, training-free variants of a model, and probes of its layers."""
