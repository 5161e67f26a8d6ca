"""Training every layer at once: an `embed` that returns all hidden states, pooled, for losses/nested.py."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tmft.errors import InputError
from tmft.losses.nested import SubEmbeddingSlices
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_task import Batch, Embedder


class AllLayersEmbedder(Embedder):
    """Embeds each sentence as its pooled hidden states 0 to l, concatenated, for a model with l layers.

    sub_embeddings: where each hidden state is in the concatenation; made with num_layers=l. It draws random
        layers in a step, so its random state is saved and restored with this object.
    Raises InputError for a model that averages several layers.
    """

    width: int
    sub_embeddings: SubEmbeddingSlices

    def __init__(self, model: SentenceEncoder, sub_embeddings: SubEmbeddingSlices):
        super().__init__(model)
        if model.layers is not None:
            raise InputError(
                "all_layers: the model averages several layers, so that none can be cut: name one layer",
                "all_layers",
            )
        self.width, self.sub_embeddings = sub_embeddings.width, sub_embeddings

    def __call__(self, batch: Batch) -> Tensor:
        pooled = self.model.forward_all_layers(pack(batch.token_ids).to(self.device))  # (l + 1, S, D)
        return pooled.transpose(0, 1).flatten(1)  # (S, (l + 1) D)

    def embed_no_grad(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        pooled = self.model.embed_token_ids(token_ids, self.model.forward_all_layers)  # (l + 1, S, D)
        return pooled.transpose(0, 1).flatten(1)  # (S, (l + 1) D)

    def state_dict(self) -> dict[str, Any]:
        return self.sub_embeddings.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sub_embeddings.load_state_dict(state)
