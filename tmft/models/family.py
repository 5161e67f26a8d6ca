"""Family: the class of the entries of FAMILIES, the registry of encoder families by model_type.

The entries are at the end of the file of each family; tmft/models/registry.py joins them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tmft.errors import InputError, short_repr
from tmft.models.base import BaseEncoder, EncoderConfig

Config = TypeVar("Config", bound=EncoderConfig)  # the configuration of the models of a family


def check_head_size(config: EncoderConfig) -> None:
    """Raise InputError if hidden_size is not a multiple of num_attention_heads."""
    if config.num_attention_heads == 0 or config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads} (config.json): one of the two is wrong"
        )


def check_equal_values(content: dict[str, Any], names: dict[str, str]) -> None:
    """Raise InputError if a config.json has a setting under both of its names, with different values.

    content: the content of config.json. names: {one name of the setting: the other one}.
    """
    for name, other in names.items():
        if name in content and other in content and content[name] != content[other]:
            raise InputError(
                f"{name} is {short_repr(content[name])} and {other} is {short_repr(content[other])} "
                "(config.json): they are two names of one setting, remove the wrong one"
            )


def check_position_table(config: EncoderConfig) -> None:
    """Raise InputError if the position table has no room for a word between two special tokens."""
    if config.max_tokens < 3:
        start = f" from row {config.position_offset} on" if config.position_offset else ""
        raise InputError(
            f"max_position_embeddings {config.max_position_embeddings} (config.json): expected "
            f"{config.position_offset + 3} or more, a sentence needs 3 positions{start}"
        )


@dataclass(frozen=True)
class Family(Generic[Config]):
    """An entry of FAMILIES: how checkpoints of one model_type are read, built and saved.

    "Saved" means in the files that transformers would write. Each field is explained by a comment.
    """

    # The encoder and its configuration.
    config: type[Config]
    encoder: Callable[[Config, int | None], BaseEncoder]  # (config, number of layers) -> encoder
    config_from_hf: Callable[
        [dict[str, Any]], dict[str, Any]
    ]  # content of a config.json -> fields of `config`
    config_to_hf: Callable[
        [dict[str, Any]], dict[str, Any]
    ]  # fields of `config` -> content of a config.json for transformers

    # Module in the checkpoint -> module of the encoder; {n} is the number of a layer, {m} of a decoder layer,
    # {g} of a group of layers that share their weights.
    weight_names: dict[str, str]
    # What these names start with in checkpoints that also have a head; the first one is used for saving.
    prefixes: tuple[str, ...]
    # Modules of a checkpoint that belong to a head: they are not loaded unless the encoder has them.
    ignored_heads: tuple[str, ...]

    # The transformers class that opens a saved encoder without a head; '' if there is none.
    transformers_class: str
    has_pooler: bool = False  # whether transformers_class creates a pooler, which a sentence encoder lacks
    min_layers: int = 0  # transformers_class cannot run an encoder with fewer layers
    # The transformers class that opens an encoder with a head for masked language modeling; '' if there is
    # none. A layout maps the name of a weight in the checkpoint to the weight of the head. Checkpoints come
    # in each of these layouts; new heads are saved in the first one.
    mlm_class: str = ""
    mlm_head_layouts: tuple[dict[str, str], ...] = ()
    mlm_config_keys: tuple[dict[str, Any], ...] = (
        {},
    )  # for each layout: keys that config.json needs in addition
    mlm_activation: str | None = None  # activation of the head; None means that of the encoder, hidden_act
    # Options of MaskedLMHead that follow from the configuration of a model: {name: value}.
    mlm_head_options: Callable[[Config], dict[str, Any]] = lambda config: {}
    # The layout of ELECTRA's head for replaced token detection; None if there is no such head.
    rtd_head_layout: dict[str, str] | None = None
    # The transformers class that opens a model with its output layer after causal language modeling; '' if
    # the family is not pre-trained so. A family that also has mlm_class predicts with the same head.
    causal_lm_class: str = ""
    # The transformers class that opens encoder and decoder after pre-training by span corruption; None if the
    # family cannot be pre-trained so (its output layer differs from T5's).
    seq2seq_class: str | None = None

    # Details of the configuration and the architecture.
    config_names: dict[str, str] = field(default_factory=dict)  # field of `config` -> its key in config.json
    nullable_keys: tuple[str, ...] = ()  # keys of config.json for which null does not mean the default
    checks: tuple[Callable[[Config], None], ...] = (check_head_size,)  # raise InputError
    components: tuple[str, ...] = ()  # what can be loaded besides the encoder, such as a decoder
    tokenizer: str = "bert"  # its entry in TOKENIZER_KINDS, tmft/checkpoints/tokenizers.py
    # Whether transformers uses its tokenizer.json as it is, whatever class tokenizer_config.json names.
    keeps_tokenizer_json: bool = False
    padding_side: str = "right"  # where users of transformers expect padding: "left" for decoders
    bert_incompatible: str = ""  # why its weights cannot be stored as those of a BERT; '' if they can
    # What the names of tensors start with in files of another form -> what to do to get a form that is read.
    unsupported_names: dict[str, str] = field(default_factory=dict)
    first_layer_needed: str = ""  # why layer 0 cannot be removed while others are kept; '' if it can
