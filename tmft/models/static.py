"""A static model: a table of word embeddings and no layers.

Its only hidden state, number 0, has the word embedding of each token, whatever the tokens around it are. This
is how StaticEmbedding of sentence-transformers works, and how word vectors such as GloVe are used.

Letters: B rows of a batch, T tokens in a row, D hidden_size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor, nn

from tmft.encoder import UNLIMITED_LENGTH, BaseEncoder, EncoderConfig, TokenEmbeddings, init_weights
from tmft.models.family import Family

WEIGHT_NAMES = {"embedding": "embeddings.word"}  # module in the checkpoint -> module here
KEYS = ("model_type", "vocab_size", "hidden_size")  # the only keys of its config.json


@dataclass(frozen=True)
class StaticConfig(EncoderConfig):
    """The configuration of a static model: the sizes of its table."""

    num_hidden_layers: int = 0
    num_attention_heads: int = 1
    intermediate_size: int = 0
    max_position_embeddings: int = UNLIMITED_LENGTH
    type_vocab_size: int = 0


class StaticEncoder(BaseEncoder):
    """An encoder without layers: the hidden state of a token is its word embedding."""

    def __init__(self, config: EncoderConfig, layer: int | None = None):
        """layer: 0 or None, as there are no layers; it is here so that all encoders are built alike."""
        super().__init__()
        config.resolve_num_layers(layer)
        self.config, self.layers = config, nn.ModuleList()
        self.embeddings = TokenEmbeddings()
        self.embeddings.word = nn.Embedding(config.vocab_size, config.hidden_size)
        init_weights(self.embeddings.word, config.initializer_range)

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield hidden state 0, the word embeddings: (B, T, D).

        input_ids: (B, T). attention_mask and position_ids are ignored; they are here because all encoders
        have them.
        """
        yield self.embeddings.word(input_ids)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Return hidden state 0, (B, T, D). Parameters: those of iter_hidden_states."""
        return self.embeddings.word(input_ids)


FAMILIES = {
    "static": Family(
        config=StaticConfig,
        encoder=StaticEncoder,
        keys={field.name: None for field in fields(StaticConfig) if field.name not in KEYS},
        weight_names=WEIGHT_NAMES,
        prefixes=("",),
        ignored_heads=(),
        transformers_class="",
        min_layers=1,  # it has none: transformers has no such model
        tokenizer="static",
        bert_incompatible="it is a table of word vectors without layers",
    ),
}
