"""Small models from large ones: distillation, pruned vocabularies, narrow embeddings, few bits."""
