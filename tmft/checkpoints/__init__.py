"""Read and write model folders: downloads, weights, tokenizers, model cards, files of other libraries."""
