"""Read and write the folder of a sentence-transformers model, except for its encoder and its tokenizer.

modules.json lists the modules that are applied to a sentence, in this order: Transformer, WordWeights if
tokens are weighted, Pooling, then any number of HEAD_MODULES, each in its own subfolder. In a static model,
StaticEmbedding takes the place of the first three. Settings that sentence-transformers does not support are
stored in tmft.json; the files of sentence-transformers then contain the closest setting that it supports.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tmft.checkpoints.save import save_tensors
from tmft.embedding.prompts import NO_PROMPTS
from tmft.errors import InputError, did_you_mean, short_repr
from tmft.io.files import UnsupportedError, get_typed, is_plain_name
from tmft.pooling import POOLINGS

TMFT_FORMAT = 1  # of tmft.json; another number means that its keys have another meaning
# Poolings whose keys all versions of sentence-transformers know: they are written even if they are false.
POOLING_KEYS = ("cls", "mean", "max", "mean_sqrt_len_tokens")
# The order in which sentence-transformers concatenates poolings.
CONCAT_ORDER = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
STATIC_EMBEDDING = "StaticEmbedding"  # the module that takes the place of Transformer in a static model
WORD_WEIGHTS = "WordWeights"  # the module with a weight for each word of the vocabulary
HEAD_MODULES = ("Dense", "LayerNorm", "Normalize")  # the modules after the pooling that tmft can run
OWN_PACKAGE = "sentence_transformers."  # what the class of a module that tmft can run begins with

# For each file the keys that it may have. The values are those under which the result is the same as without
# the key; None: the key is read. Everything else is refused (check_known_keys), since sentence-transformers
# would compute other embeddings than tmft.
TRANSFORMER_KEYS: dict[str, tuple[object, ...] | None] = {
    "max_seq_length": None,
    "do_lower_case": None,
    "transformer_task": ("feature-extraction",),
    "modality_config": None,
    "module_output_name": ("token_embeddings",),
    "unpad_inputs": (True, False),  # batches without padding give the same embeddings
    # Arguments for transformers: null and {} alone, and what has no effect on the result (ARGUMENT_KEYS).
    **dict.fromkeys(("model_args", "model_kwargs", "config_args", "config_kwargs"), None),
    **dict.fromkeys(("tokenizer_args", "processor_kwargs"), None),
}
ARGUMENT_KEYS: dict[str, tuple[object, ...] | None] = {
    "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
    "add_pooling_layer": (True, False),
    "trust_remote_code": (True, False),  # sentence-transformers removes it as well
    "torch_dtype": ("float32", "auto"),
    "dtype": ("float32", "auto"),
    "use_fast": (True, False),
    "padding_side": ("left", "right"),
    "low_cpu_mem_usage": (True, False),
    "use_safetensors": (True, False),
    "use_memory_efficient_attention": (True, False),
    "unpad_inputs": (True, False),
}
POOLING_CONFIG_KEYS: dict[str, tuple[object, ...] | None] = {
    **dict.fromkeys(("word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt")),
    **dict.fromkeys(key for entry in POOLINGS.values() if (key := entry.sentence_transformers_key)),
}
HEAD_CONFIG_KEYS: dict[str, dict[str, tuple[object, ...] | None]] = {
    "Dense": {
        **dict.fromkeys(("in_features", "out_features", "bias", "activation_function")),
        "module_input_name": ("sentence_embedding",),
        "module_output_name": ("sentence_embedding",),
        "use_residual": (False,),
    },
    "LayerNorm": {"dimension": None},
    "Normalize": {
        "module_input_name": ("sentence_embedding",),
        "module_output_name": ("sentence_embedding",),
    },
    WORD_WEIGHTS: dict.fromkeys(("vocab", "word_weights", "unknown_word_weight")),
}
TMFT_KEYS: dict[str, tuple[object, ...] | None] = dict.fromkeys(
    ("format", "pooling", "layer_mix", "token_weights", "prompts", "default_prompt_name")
)
# This file alone may have keys that nobody knows: sentence-transformers does not read them either.
ST_CONFIG_KEYS = ("__version__", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
ST_MODEL_TYPES = ("SentenceTransformer",)
TEXT_MODALITY = {"method": "forward", "method_output_name": "last_hidden_state"}


@dataclass
class SavedModule:
    """A module as it is stored in a folder: usually one after the pooling, or the WordWeights before it.

    kind: the name of its class, one of HEAD_MODULES or WORD_WEIGHTS.
    config: the content of its config.json.
    weights: its tensors, under the names that they have in its model.safetensors.
    folder: the folder from which it was read, for messages; '' for a module that is to be written.
    """

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    folder: str = ""


@dataclass
class ModelSettings:
    """The settings in a model folder, besides those of the encoder and the tokenizer.

    pooling: a name as in tmft/pooling.py, such as mean or max+mean; None if the folder does not state it.
    max_length: the number of tokens to which sentences are truncated; None if the folder does not state it.
    lower_case: whether the text is lower-cased before it is tokenized.
    prompts: name -> a prefix of a sentence, or a template in which [X] stands for the sentence.
    default_prompt_name: the name of the prompt that is used if none is asked for; None if it is no prompt.
    similarity_fn_name: how embeddings are compared, one of SIMILARITIES.
    truncate_dim: how many dimensions of an embedding are kept, the first ones; None keeps all.
    include_prompt: whether the tokens of a prompt are pooled.
    layer_mix: the hidden states whose mean is pooled, such as "1+12"; None means the last hidden state.
    token_width: the dimensions of the token vectors that are pooled, to be written; 0 if it is not known.
    token_weights: the name of token weights that depend on positions, "no-prompt"; None if there are none.
    word_weights: (V,) float32, the weight of each token of the vocabulary in mean pooling; None if all
    weights are equal.
    modules: the modules after the pooling, in the order in which they are applied.
    """

    pooling: str | None = None
    max_length: int | None = None
    lower_case: bool = False
    prompts: dict[str, str] = field(default_factory=NO_PROMPTS.copy)
    default_prompt_name: str | None = None
    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None
    include_prompt: bool = True
    layer_mix: str | None = None
    token_width: int = 0
    token_weights: str | None = None
    word_weights: Tensor | None = None
    modules: list[SavedModule] = field(default_factory=list)

    @property
    def tmft_only(self) -> dict[str, str | dict[str, str]]:
        """The settings that sentence-transformers does not support: the content of tmft.json."""
        # sentence-transformers applies word weights to the hidden states, tmft in the pooling. Both are the
        # same before the mean alone, so before another pooling tmft.json says whose meaning the folder has.
        tmft_weights = self.word_weights is not None and self.pooling != "mean"
        settings = {
            "pooling": None if self.pooling_is_supported and not tmft_weights else self.pooling,
            "layer_mix": self.layer_mix,
            "token_weights": self.token_weights,
            "prompts": self.prompt_templates,
            "default_prompt_name": self.default_prompt_name if is_prompt_template(self.prompt) else None,
        }
        return {key: value for key, value in settings.items() if value}

    @property
    def pooling_is_supported(self) -> bool:
        """Whether sentence-transformers has every part of the pooling."""
        poolings = (self.pooling or "mean").split("+")
        return all(POOLINGS[name].sentence_transformers_key for name in poolings)

    @property
    def prompt(self) -> str:
        """The text of the default prompt; '' if there is none."""
        return "" if self.default_prompt_name is None else self.prompts[self.default_prompt_name]

    @property
    def prompt_templates(self) -> dict[str, str]:
        """The prompts that are more than a prefix, which sentence-transformers does not support."""
        return {name: text for name, text in self.prompts.items() if is_prompt_template(text)}

    @property
    def is_plain_mean(self) -> bool:
        """Whether an embedding is the mean of the last hidden states and nothing else."""
        more = self.modules or self.prompt or self.tmft_only or self.truncate_dim
        more = more or self.word_weights is not None
        return self.pooling == "mean" and self.include_prompt and not more

    @property
    def compatibility_note(self) -> str:
        """What sentence-transformers computes differently with the folder, in sentences; '' if nothing."""
        differences = {
            "pooling": "has no pooling {!r} and takes the mean",
            "layer_mix": "takes the last hidden state, not the mix {}",
            "token_weights": "takes the plain mean of all tokens, without the token weights {}",
        }
        settings = self.tmft_only
        if self.pooling_is_supported:
            settings.pop("pooling", None)  # 1_Pooling has it, too
        notes = [text.format(settings[key]) for key, text in differences.items() if key in settings]
        notes += [f"leaves out the prompt {text!r}" for text in self.prompt_templates.values()]
        if self.word_weights is not None and (self.word_weights == 0).any():
            notes.append(
                "gives a sentence whose words all have weight 0 a vector of zeros, instead of the plain mean"
            )
        if self.word_weights is not None and self.pooling != "mean":
            notes.append(f"weights tokens differently before the pooling {self.pooling!r}")
        return " ".join(f"sentence-transformers {note}." for note in notes)


def is_prompt_template(text: str) -> bool:
    """Return whether a prompt is more than a prefix: text after the sentence, or a mask token."""
    return "[X" in text.removesuffix("[X]") or "[M]" in text


# ------------------------------------------------------------------------------- reading

# Each of these functions takes the content of one file. A wrong value raises ValueError or TypeError, and
# ModelFolder, which reads the files, adds the name of the file to the message.


def check_known_keys(content: dict[str, Any], known: Mapping[str, Sequence[object] | None]) -> None:
    """Raise UnsupportedError for a key that is not known: what nobody reads may change the result.

    known: key -> the values under which the result is that of a file without the key; None if the caller
    reads the key. Keys whose value is null or {} are as if they were absent.
    """
    for key, value in content.items():
        if value is None or value == {}:
            continue
        if key not in known:
            raise UnsupportedError(
                f"the key {short_repr(key)} is {short_repr(value)}, and tmft does not know it: other "
                "libraries may compute something else, so remove the key if it has no effect"
            )
        supported = known[key]
        if supported is not None and not any(type(value) is type(one) and value == one for one in supported):
            raise UnsupportedError(
                f"{key} is {short_repr(value)}, which tmft does not support: other libraries compute "
                "something else with it, so use a model without it"
            )


class ModuleEntry(NamedTuple):
    """A line of modules.json: the class of a module and its subfolder ('': none).

    kind: the name of the class without its package, if sentence-transformers has the class; else its full
    name, as another package's class computes something else.
    """

    kind: str
    subfolder: str


def parse_modules(entries: list[dict[str, Any]]) -> list[ModuleEntry]:
    """Return the modules that a modules.json lists; each is in the folder itself or directly below it."""
    modules = []
    names = [str(entry["name"]) for entry in entries if entry.get("name") is not None]
    if repeated := [name for name in names if names.count(name) > 1]:  # the last one alone would be run
        raise ValueError(f"the name {short_repr(repeated[0])} occurs twice")
    for entry in entries:
        kind, subfolder = (get_typed(entry, key, str) or "" for key in ("type", "path"))
        kind = kind.rpartition(".")[2] if kind.startswith(OWN_PACKAGE) else kind
        if not subfolder.startswith("/"):
            subfolder = subfolder.removeprefix("./").rstrip("/")
        subfolder = "" if subfolder == "." else subfolder
        check_known_keys(entry, {"idx": None, "name": None, "path": None, "type": None, "kwargs": ([],)})
        if subfolder and not is_plain_name(subfolder):
            raise ValueError(f"a {kind} is in {short_repr(subfolder)}, not in a folder directly below")
        modules.append(ModuleEntry(kind, subfolder))
    return modules


def find_chain_problem(kinds: list[str]) -> str:
    """Return what is wrong with the order of the modules in a modules.json; '' if nothing is.

    kinds: their classes. A sentence passes a Transformer, WordWeights (if any), a Pooling, then any number of
    HEAD_MODULES; in a static model a StaticEmbedding takes the place of the first three.
    """
    first, *others = kinds
    if foreign := [kind for kind in kinds if "." in kind]:
        return f"has a {short_repr(foreign[0])}, a class of another package"
    before_head = [] if first == STATIC_EMBEDDING else ["Pooling"]
    if first == "Transformer" and others[:1] == [WORD_WEIGHTS]:
        before_head = [WORD_WEIGHTS, "Pooling"]
    if others[: len(before_head)] != before_head:
        if "Pooling" not in others:
            return "has no Pooling, so that a sentence has an embedding for each token"
        return f"has {', '.join(kinds)} in this order, where a Pooling follows the Transformer"
    if strange := [kind for kind in others[len(before_head) :] if kind not in HEAD_MODULES]:
        return f"has a {short_repr(strange[0])} after the pooling"
    return ""


def parse_st_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelSettings that a config_sentence_transformers.json states."""
    if (model_type := content.get("model_type") or ST_MODEL_TYPES[0]) not in ST_MODEL_TYPES:
        raise ValueError(f"model_type is {short_repr(model_type)}, not {ST_MODEL_TYPES[0]}")
    truncate_dim = get_typed(content, "truncate_dim", int)
    if truncate_dim is not None and truncate_dim < 1:
        raise ValueError(f"truncate_dim is {short_repr(truncate_dim)}, not 1 or more")
    similarity_fn_name = get_typed(content, "similarity_fn_name", str) or "cosine"
    return {**parse_prompts(content), "similarity_fn_name": similarity_fn_name, "truncate_dim": truncate_dim}


def parse_tmft_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelSettings that a tmft.json states."""
    if (number := content.get("format", TMFT_FORMAT)) != TMFT_FORMAT:
        raise ValueError(f"its format is {short_repr(number)}, this version of tmft reads {TMFT_FORMAT}")
    check_known_keys(content, TMFT_KEYS)
    names = {key: get_typed(content, key, str) for key in ("pooling", "layer_mix", "token_weights")}
    return parse_prompts(content) | names


def parse_prompts(content: dict[str, Any]) -> dict[str, Any]:
    """Return the prompts and the name of the default prompt, which both files may state."""
    texts = get_typed(content, "prompts", dict) or {}
    prompts = {key: get_typed(texts, key, str) or "" for key in texts}
    return {"prompts": prompts, "default_prompt_name": get_typed(content, "default_prompt_name", str)}


def parse_transformer_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelSettings that a sentence_bert_config.json states."""
    check_known_keys(content, TRANSFORMER_KEYS)
    modalities = get_typed(content, "modality_config", dict) or {"text": TEXT_MODALITY}
    if modalities.get("text") != TEXT_MODALITY:
        raise ValueError(
            f"modality_config has {short_repr(modalities.get('text'))} for text, not the last layer"
        )
    for key in TRANSFORMER_KEYS:
        if key.endswith(("_args", "_kwargs")):
            check_known_keys(get_typed(content, key, dict) or {}, ARGUMENT_KEYS)
    max_length = content.get("max_seq_length")
    if type(max_length) is bool or max_length in (1, 2):  # other strange values are ignored
        raise ValueError(f"max_seq_length is {max_length}, not 3 or more tokens")
    max_length = max_length if isinstance(max_length, int) and max_length > 0 else None
    return {"max_length": max_length, "lower_case": bool(content.get("do_lower_case"))}


def parse_pooling_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return the pooling, such as "max+mean", and include_prompt, as the config.json of a Pooling has them.

    Old files have a key for each pooling, new ones a single key. The pooling is None if none is chosen.
    """
    check_known_keys(content, POOLING_CONFIG_KEYS)
    names = content.get("pooling_mode") or [
        name
        for name in CONCAT_ORDER
        if get_typed(content, POOLINGS[name].sentence_transformers_key or "", bool)
    ]
    names = names.split("+") if isinstance(names, str) else list(names)
    if unknown := [name for name in names if name not in POOLINGS]:
        raise ValueError(f"the pooling {short_repr(unknown[0])} is not known to tmft")
    return {
        "pooling": "+".join(names) or None,
        "include_prompt": get_typed(content, "include_prompt", bool) is not False,
    }


def parse_module_config(content: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the config.json of a module after the pooling unchanged, if tmft can run the module.

    kind: one of HEAD_MODULES or WORD_WEIGHTS.
    """
    check_known_keys(content, HEAD_CONFIG_KEYS[kind])
    activation = content.get("activation_function")
    if activation is not None and not str(activation).startswith("torch.nn."):
        raise ValueError(f"activation_function is {short_repr(activation)}, which is no class of torch.nn")
    return content


def merge_settings(
    st_config: dict[str, Any],
    tmft_json: dict[str, Any],
    transformer_config: dict[str, Any],
    pooling_config: dict[str, Any],
) -> ModelSettings:
    """Return the settings of a folder. Prompts and pooling in tmft.json replace those of the other files."""
    settings = ModelSettings(**st_config | pooling_config | tmft_json | transformer_config)
    settings.prompts = NO_PROMPTS | st_config["prompts"] | tmft_json["prompts"]
    settings.pooling = settings.pooling or pooling_config.get("pooling")
    if settings.default_prompt_name is None:
        settings.default_prompt_name = st_config["default_prompt_name"]
    if (default := settings.default_prompt_name) is not None and default not in settings.prompts:
        known = f"{', '.join(settings.prompts)}{did_you_mean(default, settings.prompts)}"
        raise ValueError(f"no prompt of the default_prompt_name {short_repr(default)}: choose one of {known}")
    return settings


def default_pooling(config: dict[str, Any]) -> str:
    """Return the pooling of a folder without modules.json: "lasttoken" for a causal model, else "mean".

    config: the content of config.json. It is that of a causal language model if the first name in
    "architectures" ends with ForCausalLM, unless its "is_causal" is false. This is the choice of
    sentence-transformers 6.2.
    """
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    is_causal = str(first).endswith("ForCausalLM") and bool(config.get("is_causal", True))
    return "lasttoken" if is_causal else "mean"


# ------------------------------------------------------------------------------- writing


def check_static_settings(pooling: str, has_token_weights: bool) -> None:
    """Raise InputError if a static model cannot be saved with a pooling and token weights.

    Its folder has no Pooling module, so the pooling has to be the plain mean.
    """
    if has_token_weights or pooling != "mean":
        raise InputError(
            "a static model can be saved with the plain mean only: remove token_weights, and "
            "choose `pooling` mean",
            "token_weights",
            "pooling",
        )


def settings_to_files(
    config: ModelSettings, vocabulary: list[str], is_static: bool, dtype: torch.dtype
) -> dict[str, str | Callable[[Path], None]]:
    """Return {file name: content} of the settings, in files that all sentence-transformers versions read.

    A content is what write_file takes.
    vocabulary: the tokens in the order of their ids, which are written with the word weights. is_static:
    whether the model is static. dtype: the dtype of the encoder and of the modules after the pooling, because
    sentence-transformers needs the same one in both.
    Raises InputError if word weights come before a Dense and dtype is not float32: WordWeights returns
    float32, but sentence-transformers opens the Dense in dtype.
    """
    has_head_weights = any(module.weights for module in config.modules)
    if dtype != torch.float32 and config.word_weights is not None and has_head_weights:
        name = str(dtype).removeprefix("torch.")
        raise InputError(
            f"dtype {name}: sentence-transformers cannot run {WORD_WEIGHTS} before a Dense in it, choose "
            "float32",
            "dtype",
        )
    tmft_only = config.tmft_only
    base_modules = {"": STATIC_EMBEDDING} if is_static else {"": "Transformer", "1_Pooling": "Pooling"}
    saved_modules = {  # subfolder -> module
        f"{number}_{module.kind}": module
        for number, module in enumerate(config.modules, start=len(base_modules))
    }
    # subfolder -> name of the class
    kinds = base_modules | {path: module.kind for path, module in saved_modules.items()}
    if config.word_weights is not None:
        kinds = {"": kinds.pop(""), "0_WordWeights": WORD_WEIGHTS, **kinds}
        saved_modules["0_WordWeights"] = word_weights_module(config.word_weights, vocabulary)

    templates = config.prompt_templates
    prompts = {
        name: text.removesuffix("[X]") for name, text in config.prompts.items() if name not in templates
    }
    default_prompt_name = None if config.default_prompt_name in templates else config.default_prompt_name
    truncate_dim = {} if config.truncate_dim is None else {"truncate_dim": config.truncate_dim}
    # The oldest versions that read these files: sentence-transformers warns if its own version is older.
    versions = {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
    pooling = config.pooling if config.pooling and config.pooling_is_supported else "mean"
    contents: dict[str, Any] = {
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (path, kind) in enumerate(kinds.items())
        ],
        "1_Pooling/config.json": pooling_config(pooling, config.token_width, config.include_prompt),
        "sentence_bert_config.json": {"max_seq_length": config.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "__version__": versions,
            "prompts": NO_PROMPTS | prompts,
            "default_prompt_name": default_prompt_name,
            "similarity_fn_name": config.similarity_fn_name,
            **truncate_dim,
        },
        "tmft.json": {"format": TMFT_FORMAT, **tmft_only},
    }
    for name in ["1_Pooling/config.json", "sentence_bert_config.json"] if is_static else []:
        del contents[name]
    if not tmft_only:
        del contents["tmft.json"]
    contents |= {f"{path}/config.json": module.config for path, module in saved_modules.items()}
    tensors: dict[str, str | Callable[[Path], None]] = {
        f"{path}/model.safetensors": partial(save_tensors, module.weights, dtype=dtype)
        for path, module in saved_modules.items()
        if module.weights
    }
    return tensors | {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}


def pooling_config(pooling: str, hidden_size: int, include_prompt: bool) -> dict[str, Any]:
    """Return the content of 1_Pooling/config.json for a pooling such as mean or max+mean.

    hidden_size: the dimensions of the token vectors that are pooled. include_prompt: whether prompts are
    pooled.
    """
    names = pooling.split("+")
    config: dict[str, Any] = {"word_embedding_dimension": hidden_size}
    for name in dict.fromkeys([*POOLING_KEYS, *names]):
        if (key := POOLINGS[name].sentence_transformers_key) is not None:
            config[key] = name in names
    if names != [name for name in CONCAT_ORDER if name in names]:  # in another order, or one of them twice
        config["pooling_mode"] = names
    if not include_prompt:
        config["include_prompt"] = False
    return config


def word_weights_module(weights: Tensor, vocabulary: list[str]) -> SavedModule:
    """Return a WordWeights module, ready to be written.

    weights: (V,) or longer, a weight for each token. vocabulary: the V tokens. Both are in the order of the
    token ids.
    """
    values = weights[: len(vocabulary)]
    word_weights = dict(zip(vocabulary, values.tolist(), strict=True))
    config = {"vocab": vocabulary, "word_weights": word_weights}
    return SavedModule(WORD_WEIGHTS, config, {"emb_layer.weight": values[:, None].clone()})
