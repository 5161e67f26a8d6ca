"""Options that change a model before it is trained: token weights, a projection, the layers to keep."""

from collections.abc import Sequence

from torch import nn

from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError
from tmft.models.registry import FAMILIES
from tmft.sentence_encoder import SentenceEncoder


def apply_training_options(
    model: SentenceEncoder,
    token_weights: str | None,
    texts: Sequence[str],
    projection: int | None,
    keep_layers: Sequence[int] | None = None,
) -> None:
    """Apply the options that change the model before fine-tuning.

    token_weights: an entry of TOKEN_WEIGHTS; None keeps those of the model.
    texts: the training sentences, from which token weights such as idf are estimated.
    projection: number of dimensions to which embeddings are projected after the pooling; None adds none.
    keep_layers: the indices, from 0, of the layers to keep; None keeps all.
    Raises InputError if the checkpoint has a different projection, if its first layer cannot be removed, or
    if the changed model could not be saved.
    """
    if projection:
        add_projection(model, projection)
    if keep_layers:
        reason = FAMILIES[model.encoder.config.model_type].first_layer_needed
        if reason and 0 not in keep_layers:
            raise InputError(f"keep_layers must include layer 0: {reason}, add 0", "keep_layers")
        model.encoder.keep_layers(keep_layers)
    if token_weights:
        model.set_token_weights(token_weights, texts)
    model.check_can_be_saved()  # now, and not after the first epoch


def add_projection(model: SentenceEncoder, dimensions: int) -> None:
    """Add a linear map without bias to `dimensions` dimensions, and Normalize, after the pooling, in place.

    A model that has exactly these modules is not changed. The map is initialized with a truncated normal
    distribution of standard deviation D^-1/2. Raises InputError if the model has another Dense.
    Source: Ni et al. 2021 (Sentence-T5), arXiv:2108.08877, section 3.1.
    """
    names = [type(module).__name__ for module in model.head_modules]
    if names[:1] == ["Dense"]:
        if model.dimensions != dimensions or names[1:] != ["Normalize"]:
            raise InputError(
                f"projection {dimensions}: {model.source} has {' and '.join(names)} to "
                f"{model.dimensions} dimensions already: remove projection",
                "projection",
            )
        return
    dense = Dense(model.dimensions, dimensions, bias=False)
    nn.init.trunc_normal_(dense.weight, std=dense.in_features**-0.5)
    model.head_modules = nn.Sequential(dense, Normalize()).to(model.device)
