"""Evaluation of sentence embeddings: the protocols of tasks, clustering and isotropy."""
