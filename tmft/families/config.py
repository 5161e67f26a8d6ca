"""What config.json says about the shape of an encoder, checked."""

from dataclasses import asdict, dataclass, fields
from functools import partial

import torch
import torch.nn.functional as F

from tmft.errors import InputError

ACTIVATIONS = {
    "gelu": F.gelu,  # exact, with the error function
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class EncoderConfig:
    """What config.json says about the shape of an encoder, under the names it uses there."""

    model_type: str
    vocab_size: int
    embedding_size: int  # differs from hidden_size only in some ELECTRAs
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pad_token_id: int = 0

    @classmethod
    def from_dict(cls, content: dict) -> "EncoderConfig":
        """Read the content of a config.json. Keys that old files omit get the defaults they always had.

        Raises InputError on a model_type not in CONFIGS, a missing size, or a value that cannot be.
        """
        model_type = content.get("model_type", "bert")  # the bert_uncased_L-* files do not say
        if model_type == "deberta":
            raise InputError(
                "model_type 'deberta' (config.json): this is version 1, take a DeBERTa of version 2 or 3"
            )
        if model_type not in [*CONFIGS]:  # a list, since a strange file may hold anything here
            raise InputError(f"model_type {model_type!r} (config.json): supported are {', '.join(CONFIGS)}")
        cls = CONFIGS[model_type]
        if content.get("position_embedding_type", "absolute") != "absolute":
            kind = content["position_embedding_type"]
            raise InputError(f"position_embedding_type {kind!r} (config.json): only 'absolute' is supported")

        known = {
            field.name: content[field.name] for field in fields(cls) if content.get(field.name) is not None
        }
        known["model_type"] = model_type
        if model_type == "electra":
            known.setdefault("embedding_size", 128)  # ELECTRA's own default, not hidden_size
        elif model_type == "deberta-v2":
            known = deberta_keys(known)
        else:
            known["embedding_size"] = known.get("hidden_size")
        for name, kind in ((field.name, field.type) for field in fields(cls)):
            if name not in known and not hasattr(cls, name):
                raise InputError(f"{name} is missing (config.json): add it, it cannot be guessed")
            value = known.get(name)
            if kind is int and value is not None and (type(value) is not int or value < 0):
                raise InputError(f"{name} is {value!r} (config.json): expected a whole number, 0 or more")
            if kind is float and value is not None and (type(value) not in (int, float) or value < 0):
                raise InputError(f"{name} is {value!r} (config.json): expected a number, 0 or more")
            if kind is bool and value is not None and type(value) is not bool:
                raise InputError(f"{name} is {value!r} (config.json): expected true or false")
            if name in ("hidden_act", "conv_act") and value is not None and value not in [*ACTIVATIONS]:
                supported = ", ".join(ACTIVATIONS)
                raise InputError(f"{name} {value!r} (config.json): supported are {supported}")

        config = cls(**known)
        if config.num_attention_heads == 0 or config.hidden_size % config.num_attention_heads:
            raise InputError(
                f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
                f"{config.num_attention_heads} (config.json): one of the two is wrong"
            )
        if isinstance(config, DebertaConfig):
            config.check(content.get("attention_head_size"))
        return config

    def to_dict(self) -> dict:
        return asdict(self)

    def check_layer(self, layer: int | None) -> int:
        """The number of layers to keep: layer itself, or all for None. Raises InputError outside 0..L."""
        L = self.num_hidden_layers
        if layer is None:
            return L
        if not 0 <= layer <= L:
            raise InputError(
                f"layer {layer}: this checkpoint has {L} layers, choose 0 (embeddings only) to {L}"
            )
        return layer


@dataclass(frozen=True)
class DebertaConfig(EncoderConfig):
    """What only a DeBERTa of version 2 or 3 says; the defaults are those of files that omit a key."""

    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    pos_att_type: tuple[str, ...] = ()  # "c2p", "p2c", both or none
    max_relative_positions: int = 0  # in a file, anything below 1 means max_position_embeddings
    position_buckets: int = 0  # 0: every distance has its own embedding
    norm_rel_ebd: str = "none"  # or "layer_norm"
    share_att_key: bool = False
    position_biased_input: bool = True  # whether absolute positions are added to the words
    conv_kernel_size: int = 0  # 0: no convolution after layer 1
    conv_groups: int = 1
    conv_act: str = "tanh"

    @property
    def span(self) -> int:
        """Relative positions are numbered -span .. span - 1, so rel_embeddings has 2 * span rows."""
        return self.position_buckets or self.max_relative_positions

    def to_dict(self) -> dict:
        """Also the keys of a pooler, which we do not have but which readers of the file ask for."""
        return asdict(self) | {
            "pooler_dropout": 0,
            "pooler_hidden_act": "gelu",
            "pooler_hidden_size": self.hidden_size,
        }

    def check(self, attention_head_size: int | None) -> None:
        """Raises InputError if the numbers do not fit together."""
        if unknown := [term for term in self.pos_att_type if term not in ("c2p", "p2c")]:
            raise InputError(f"pos_att_type {unknown[0]!r} (config.json): supported are c2p and p2c")
        most = 2 * self.max_relative_positions - 3
        if self.position_buckets and not 2 <= self.position_buckets <= most:
            raise InputError(
                f"position_buckets {self.position_buckets} (config.json): with max_relative_positions "
                f"{self.max_relative_positions} it is 2 to {most}, or -1 for none"
            )
        if self.conv_kernel_size and self.conv_kernel_size % 2 == 0:
            raise InputError(
                f"conv_kernel_size {self.conv_kernel_size} (config.json): expected an odd number, or 0"
            )
        if self.conv_groups == 0 or self.hidden_size % self.conv_groups:
            raise InputError(
                f"conv_groups {self.conv_groups} (config.json): expected a divisor of hidden_size "
                f"{self.hidden_size}"
            )
        if attention_head_size not in (None, self.hidden_size // self.num_attention_heads):
            raise InputError(
                f"attention_head_size {attention_head_size} (config.json): {self.num_attention_heads} heads "
                f"of this size do not make up hidden_size {self.hidden_size}, correct one of the three"
            )


CONFIGS = {"bert": EncoderConfig, "electra": EncoderConfig, "deberta-v2": DebertaConfig}


def deberta_keys(known: dict) -> dict:
    """The keys of a DeBERTa's config.json in the form of DebertaConfig."""
    known = {"embedding_size": known.get("hidden_size")} | known
    for name in ("max_relative_positions", "position_buckets"):
        if type(known.get(name)) is int:
            known[name] = max(known[name], 0)  # -1 stands for "not used"
    known["max_relative_positions"] = known.get("max_relative_positions") or known.get(
        "max_position_embeddings", DebertaConfig.max_position_embeddings
    )
    known["norm_rel_ebd"] = str(known.get("norm_rel_ebd", "none")).lower()
    terms = known.get("pos_att_type", ())
    terms = terms if isinstance(terms, (list, tuple)) else str(terms).split("|")  # or one string, "p2c|c2p"
    terms = [str(term).strip().lower() for term in terms]
    known["pos_att_type"] = tuple(dict.fromkeys(term for term in terms if term))
    return known
