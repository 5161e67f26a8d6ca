"""Losses: the cosine loss of the paper, contrastive learning, distillation, task heads, nested embeddings."""
