"""Training every layer at once: an `embed` that returns all hidden states, pooled, for losses/nested.py."""

from typing import Any

from torch import Tensor

from tmft.errors import InputError
from tmft.losses.nested import SubEmbeddings
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.task import PackedEmbed


class AllLayersEmbed(PackedEmbed):
    """Embeds each sentence as its pooled hidden states 0 to L, concatenated, for a model with L layers.

    sub_embeddings: where each hidden state is in the concatenation; made with num_layers=L. It draws random
        layers in a step, so its random state is saved and restored with this object.
    Raises InputError for a model that averages several layers.
    """

    width: int
    sub_embeddings: SubEmbeddings

    def __init__(self, model: SentenceEncoder, sub_embeddings: SubEmbeddings):
        super().__init__(model)
        if model.layers is not None:
            raise InputError(
                "all_layers: the model averages several layers, so that none can be cut: name one layer",
                "all_layers",
            )
        self.width, self.sub_embeddings = sub_embeddings.width, sub_embeddings

    def forward_packed(self, packed: PackedBatch) -> Tensor:
        """Embed a packed batch of S sentences: return (S, (L + 1) D) float32."""
        return self.model.forward_all_layers(packed).transpose(0, 1).flatten(1)

    def state_dict(self) -> dict[str, Any]:
        return self.sub_embeddings.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sub_embeddings.load_state_dict(state)
