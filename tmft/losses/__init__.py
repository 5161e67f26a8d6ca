"""Losses: the paper's cosine loss, contrastive learning, distillation, task heads, nested embeddings."""
