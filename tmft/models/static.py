"""A static model: a table of word embeddings and nothing more.

Hidden state 0 of a token is its row of the table, whatever its neighbors are; there are no layers. This is
the form of sentence-transformers' StaticEmbedding, and of word vectors such as GloVe.

Letters in this file: B rows of a batch, T tokens in a row, D hidden_size.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from tmft.models.base import BaseEncoder, EncoderConfig, init_weights

WEIGHT_NAMES = {"embedding": "embeddings.word"}  # module in the checkpoint -> module here
UNLIMITED_LENGTH = 1 << 20  # max_position_embeddings of models without position embeddings, in tokens


class StaticEmbedding(BaseEncoder):
    """An encoder without layers: `layer` can only be 0 or None."""

    def __init__(self, config: EncoderConfig, layer: int | None = None):
        super().__init__()
        config.resolve_num_layers(layer)
        self.config, self.layers = config, nn.ModuleList()
        self.embeddings = nn.Module()
        self.embeddings.word = nn.Embedding(config.vocab_size, config.hidden_size)
        init_weights(self.embeddings.word, config.initializer_range)

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the word embeddings, (B, T, D). Neither mask nor positions matter."""
        yield self.embeddings.word(input_ids)


def config_from_hf(content: dict) -> dict:
    """The content of a config.json -> the fields of EncoderConfig. Only vocab_size and hidden_size matter."""
    return content | {
        "embedding_size": content.get("hidden_size", 0),
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "intermediate_size": 0,
        "type_vocab_size": 0,
        "max_position_embeddings": UNLIMITED_LENGTH,
    }


def config_to_hf(content: dict) -> dict:
    """The fields of EncoderConfig -> the content of a config.json, which has the sizes of the table alone."""
    return {key: content[key] for key in ("model_type", "vocab_size", "hidden_size")}
