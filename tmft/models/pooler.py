"""The pooler of BERT: tanh(W h + b) of the hidden state h of [CLS], with weights of the checkpoint.

BERT was pre-trained with it to predict the next sentence; the supervised models of SimCSE have their MLP in
its place. transformers calls its result pooler_output.

Letters: S sentences, B rows of a batch, T tokens in a row, D hidden_size.
Source: Devlin et al. 2019, arXiv:1810.04805, section 4; Gao et al. 2021, arXiv:2104.08821, section 6.3.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from tmft.encoder import BaseEncoder, EncoderConfig, init_weights
from tmft.packing import PackedBatch
from tmft.pooling import cls_pooling

# Module in the checkpoint -> module here, to be added to the names of an encoder that may have a pooler.
WEIGHT_NAMES = {"pooler.dense": "pooler_pooling.dense"}


class Pooler(nn.Module):
    """The pooling "pooler": a linear layer and tanh, applied to the hidden state of the first token."""

    dense: nn.Linear

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.apply(partial(init_weights, std=config.initializer_range))

    def forward(self, hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
        """Return one vector for each sentence of a packed batch, (S, D).

        hidden: (B, T, D). weights: ignored; it is here because all poolings have this parameter.
        """
        return self.dense(cls_pooling(hidden, batch).to(self.dense.weight.dtype)).tanh()


def with_pooler(
    encoder_class: Callable[..., BaseEncoder],
) -> Callable[[EncoderConfig, int | None], BaseEncoder]:
    """Return a function that makes an encoder, with a pooler if it is among the components to be loaded.

    encoder_class: the class of the encoder. The pooler is its attribute pooler_pooling, where
    `pooling_functions` (tmft/pooling.py) finds it.
    """

    def make_encoder(config: EncoderConfig, layer: int | None = None) -> BaseEncoder:
        encoder = encoder_class(config, layer)
        if config.components:
            encoder.pooler_pooling = Pooler(config)
        return encoder

    return make_encoder
