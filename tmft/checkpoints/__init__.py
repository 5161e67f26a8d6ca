"""Reading and writing model folders: hub, weights, tokenizers, model cards, files of other libraries."""
