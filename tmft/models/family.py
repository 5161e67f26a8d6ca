"""Family: the class of the entries of FAMILIES, the registry of encoder families by model_type.

The entries are at the end of the file of each family; tmft/models/families.py joins them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tmft.encoder import BaseEncoder, EncoderConfig

Config = TypeVar("Config", bound=EncoderConfig)  # the configuration of the models of a family


@dataclass(frozen=True)
class Family(Generic[Config]):
    """An entry of FAMILIES: how checkpoints of one model_type are read, built and saved.

    "Saved" means in the files that transformers would write. Each field is explained by a comment.
    """

    # The encoder and its configuration. A configuration is a table: each field has a type, the default of
    # transformers, and a key in config.json. families.py reads it (config_from_dict) and writes it
    # (config_to_dict).
    config: type[Config]
    encoder: Callable[[Config, int | None], BaseEncoder]  # (config, number of layers) -> encoder
    # Module in the checkpoint -> module of the encoder; {n} is the number of a layer, {m} of a decoder layer.
    weight_names: dict[str, str]
    # What these names start with in checkpoints that also have a head; the first one is used for saving.
    prefixes: tuple[str, ...]
    # Module -> the module of which it is a copy: it takes its place in checkpoints without that one.
    copies: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # Modules of a checkpoint that belong to a head: they are not loaded unless the encoder has them.
    ignored_heads: tuple[str, ...]

    # The transformers class that opens a saved encoder without a head; '' if there is none.
    transformers_class: str
    class_with_components: str = ""  # the one that opens it with its components; '': the same
    min_layers: int = 0  # transformers_class cannot run an encoder with fewer layers
    # The transformers class that opens an encoder with a head for masked language modeling; '' if there is
    # none. A layout maps the name of a weight in the checkpoint to the weight of the head. Checkpoints come
    # in each of these layouts; new heads are saved in the first one.
    mlm_class: str = ""
    mlm_head_layouts: tuple[dict[str, str], ...] = ()
    # For each layout: keys that config.json needs in addition.
    mlm_config_keys: tuple[dict[str, Any], ...] = ({},)
    mlm_activation: str | None = None  # activation of the head; None means that of the encoder, hidden_act
    # Options of MaskedLMHead that follow from the configuration of a model: {name: value}.
    mlm_head_options: Callable[[Config], dict[str, Any]] = lambda config: {}
    # The layout of ELECTRA's head for replaced token detection; None if there is no such head.
    rtd_head_layout: dict[str, str] | None = None

    # Details of the configuration, most of them parts of its table.
    # Field of `config` -> its key in config.json where it has another name there; None: it has no key.
    keys: Mapping[str, str | None] = field(default_factory=dict)
    other_keys: dict[str, str] = field(default_factory=dict)  # key -> another name of it that files may have
    supported: dict[str, tuple] = field(default_factory=dict)  # key -> the values that are supported
    nullable_keys: tuple[str, ...] = ()  # keys for which null does not mean the default
    # Content of a config.json -> the same with the keys and forms of values that the table has.
    normalize: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content
    # (content of config.json, fields that were read from it and checked) -> all fields, also those that
    # follow from others.
    complete: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda content, values: values
    # Configuration -> keys that transformers needs in addition to those of the table.
    extra_keys: Callable[[Config], dict[str, Any]] = lambda config: {}
    # Details of the architecture and the tokenizer.
    # What can be loaded besides the encoder, because the pooling of that name needs it: a decoder, a pooler.
    components: tuple[str, ...] = ()
    tokenizer: str = "bert"  # its entry in TOKENIZER_KINDS, tmft/checkpoints/tokenizer_kinds.py
    padding_side: str = "right"  # where users of transformers expect padding: "left" for decoders
    has_numpy_encoder: bool = False  # whether tmft/export/numpy_encoder.py computes it with its own weights
    bert_incompatible: str = ""  # why its weights cannot be stored as those of a BERT; '' if they can
