"""Truncated model fine-tuning: sentence embeddings from the first l layers of BERT, ELECTRA and DeBERTa."""

from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

__all__ = ["InputError", "SentenceEncoder"]
__version__ = "0.11.0"
