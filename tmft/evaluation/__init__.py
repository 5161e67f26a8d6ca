"""Evaluation of sentence embeddings: the protocols of tasks, retrieval, clustering and isotropy."""
