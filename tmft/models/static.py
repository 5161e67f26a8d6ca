"""A table of words and nothing more: hidden state 0 of a token is its row, whatever stands beside it.

The form of sentence-transformers' StaticEmbedding and of word vectors; V words of D numbers.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from tmft.models.bert import BaseEncoder, EncoderConfig, init_weights

NAMES = {"embedding": "embeddings.word"}
LONGEST = 1 << 20  # tokens of a text: there is no table of positions to end at


class Static(BaseEncoder):
    def __init__(self, config: EncoderConfig, layer: int | None = None):
        super().__init__()
        config.resolve_num_layers(layer)
        self.config, self.layers = config, nn.ModuleList()
        self.embeddings = nn.Module()
        self.embeddings.word = nn.Embedding(config.vocab_size, config.hidden_size)
        init_weights(self.embeddings.word, config.initializer_range)

    def iter_hidden_states(self, input_ids, attention_mask=None, position_ids=None) -> Iterator[Tensor]:
        yield self.embeddings.word(input_ids)


def read_keys(content: dict) -> dict:
    """vocab_size and hidden_size are all that matters."""
    sizes = {"num_hidden_layers": 0, "num_attention_heads": 1, "intermediate_size": 0, "type_vocab_size": 0}
    return (
        content
        | sizes
        | {"embedding_size": content.get("hidden_size", 0), "max_position_embeddings": LONGEST}
    )


def write_keys(content: dict) -> dict:
    return {key: content[key] for key in ("model_type", "vocab_size", "hidden_size")}
