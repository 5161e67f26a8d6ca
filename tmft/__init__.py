"""Truncated model fine-tuning: sentence embeddings from the first layers of a pre-trained model."""

from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

__all__ = ["InputError", "SentenceEncoder"]
__version__ = "0.16.0"
