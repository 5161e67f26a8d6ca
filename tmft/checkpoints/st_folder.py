"""Read and write the folder of a sentence-transformers model, except for its encoder and its tokenizer.

modules.json lists the modules that are applied to a sentence, in this order: Transformer, WordWeights if
tokens are weighted, Pooling, then any number of HEAD_MODULES, each in its own subfolder. In a static model,
StaticEmbedding takes the place of the first three. Settings that sentence-transformers does not support are
stored in tmft.json; the files of sentence-transformers then contain the closest setting that it supports.
"""

import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tmft.checkpoints.model_folder import STATIC_EMBEDDING, ModelFolder, ModuleEntry
from tmft.checkpoints.save import save_tensors
from tmft.checkpoints.tokenizers import Tokenizer
from tmft.errors import InputError, did_you_mean, short_repr
from tmft.io.atomic import write_file
from tmft.io.files import get_typed, is_utf8_string
from tmft.pooling import POOLINGS

TMFT_FORMAT = 1  # of tmft.json; another number means that its keys have another meaning
# Poolings whose keys all versions of sentence-transformers know: they are written even if they are false.
POOLING_KEYS = ("cls", "mean", "max", "mean_sqrt_len_tokens")
# The order in which sentence-transformers concatenates poolings.
CONCAT_ORDER = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
WORD_WEIGHTS = "WordWeights"  # the module with a weight for each word of the vocabulary
BASE_MODULES = ("Transformer", STATIC_EMBEDDING, "Pooling")
HEAD_MODULES = ("Dense", "LayerNorm", "Normalize")  # the modules after the pooling that tmft can run
MAX_POOLING_NAME_LENGTH = 200  # characters of a name such as max+mean
NO_PROMPTS = {"query": "", "document": ""}  # the prompts that every model of sentence-transformers has
SIMILARITY_FN_NAMES = ("cosine", "dot", "euclidean", "manhattan")  # as in SentenceTransformer

log: logging.Logger = logging.getLogger("tmft")


@dataclass
class Module:
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
    similarity_fn_name: how embeddings are compared, one of SIMILARITY_FN_NAMES.
    truncate_dim: how many dimensions of an embedding are kept, the first ones; None keeps all.
    layer_mix: the hidden states whose mean is pooled, such as "1+12"; None means the last hidden state.
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
    layer_mix: str | None = None
    token_weights: str | None = None
    word_weights: Tensor | None = None
    modules: list[Module] = field(default_factory=list)

    # Each of these methods reads the settings of one file; a wrong value raises ValueError or TypeError.

    def add_st_config(self, content: dict[str, Any]) -> None:
        """Read config_sentence_transformers.json."""
        self.add_prompts(content)
        self.similarity_fn_name = get_typed(content, "similarity_fn_name", str) or "cosine"
        self.truncate_dim = get_typed(content, "truncate_dim", int)
        if self.truncate_dim is not None and self.truncate_dim < 1:
            raise ValueError(f"truncate_dim is {short_repr(self.truncate_dim)}, not 1 or more")

    def add_tmft_json(self, content: dict[str, Any]) -> None:
        """Read tmft.json; what it says about a prompt replaces what the other file says."""
        if (number := content.get("format", TMFT_FORMAT)) != TMFT_FORMAT:
            raise ValueError(f"its format is {short_repr(number)}, this version of tmft reads {TMFT_FORMAT}")
        self.add_prompts(content)
        for key in ("pooling", "layer_mix", "token_weights"):
            setattr(self, key, get_typed(content, key, str))

    def add_prompts(self, content: dict[str, Any]) -> None:
        """Read the prompts and the name of the default prompt, which both files may have."""
        texts = get_typed(content, "prompts", dict) or {}
        if not all(map(is_utf8_string, texts)):
            raise ValueError("the name of a prompt is not in UTF-8")
        self.prompts |= {key: get_typed(texts, key, str) or "" for key in texts}
        default = get_typed(content, "default_prompt_name", str)
        self.default_prompt_name = self.default_prompt_name if default is None else default

    def add_transformer_config(self, content: dict[str, Any]) -> None:
        """Read sentence_bert_config.json."""
        max_length = content.get("max_seq_length")
        if type(max_length) is bool or max_length in (1, 2):  # other strange values are ignored
            raise ValueError(f"max_seq_length is {max_length}, not 3 or more tokens")
        self.max_length = max_length if isinstance(max_length, int) and max_length > 0 else None
        self.lower_case = bool(content.get("do_lower_case"))

    def add_pooling_config(self, content: dict[str, Any]) -> None:
        """Read the config.json of the Pooling; the pooling in tmft.json, which is read before, wins."""
        if content.get("include_prompt") is False and any(self.prompts.values()):
            raise ValueError("include_prompt is false, but pooling without the prompt is not supported")
        self.pooling = self.pooling or pooling_name(content)

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
        return self.pooling == "mean" and not more

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


def read_settings(folder: ModelFolder, with_modules: bool = True) -> ModelSettings:
    """Return the settings in a model folder, besides those of the encoder and the tokenizer.

    with_modules: False ignores token weights, the modules after the pooling, the number of dimensions to keep
    and the similarity function; the files of the modules are then not read.
    Raises InputError if a file is damaged, or if tmft cannot run one of the modules.
    """
    path, settings, of_encoder = folder.path, ModelSettings(), "sentence_bert_config.json"
    folder.parse_json("config_sentence_transformers.json", settings.add_st_config)
    folder.parse_json("tmft.json", settings.add_tmft_json)
    in_encoder = folder.in_encoder(of_encoder)
    folder.parse_json(in_encoder if folder.find(in_encoder) else of_encoder, settings.add_transformer_config)
    pooling_folder = folder.subfolder_of("Pooling") if folder.modules else "1_Pooling"
    if pooling_folder is not None:
        folder.parse_json(f"{pooling_folder}/config.json", settings.add_pooling_config)

    if (default := settings.default_prompt_name) is not None and default not in settings.prompts:
        known = f"{', '.join(settings.prompts)}{did_you_mean(default, settings.prompts)}"
        problem = f"{path} has no prompt of the default_prompt_name {short_repr(default)}"
        raise InputError(f"{problem}: choose one of {known}")
    if settings.pooling and len(settings.pooling) > MAX_POOLING_NAME_LENGTH:
        raise InputError(
            f"{path} has a pooling {short_repr(settings.pooling)} of too long a name: restore it"
        )
    if not with_modules:
        return replace(settings, similarity_fn_name="cosine", truncate_dim=None, token_weights=None)
    if (similarity := settings.similarity_fn_name) not in SIMILARITY_FN_NAMES:
        log.warning("%s has similarity_fn_name %s: embeddings are compared by their cosine", path, similarity)
        settings.similarity_fn_name = "cosine"
    if (word_weights := folder.subfolder_of(WORD_WEIGHTS)) is not None:
        if (settings.pooling or "mean") != "mean" and folder.find("tmft.json") is None:
            raise InputError(
                f"{path} weights tokens ({WORD_WEIGHTS}) before the pooling {settings.pooling!r}, which tmft "
                "cannot run: name a `pooling`, which is then used without these weights and without modules "
                "after it",
                "pooling",
            )
        settings.word_weights = read_word_weights(folder, word_weights)
    settings.modules = [
        read_module(folder, module)
        for module in folder.modules
        if module.kind not in (*BASE_MODULES, WORD_WEIGHTS)
    ]
    return settings


def default_pooling(folder: ModelFolder) -> str:
    """Return the pooling of a folder that states none: "lasttoken" for causal language models, else "mean".

    A folder is taken as one of a causal language model if it has no modules.json and the first name in
    "architectures" of its config.json ends with ForCausalLM, unless its "is_causal" is false. This is the
    choice of sentence-transformers 6.2.
    """
    if folder.modules:
        return "mean"
    architectures = folder.config_dict.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    is_causal = str(first).endswith("ForCausalLM") and bool(folder.config_dict.get("is_causal", True))
    return "lasttoken" if is_causal else "mean"


def pooling_name(config: dict[str, Any]) -> str | None:
    """Return the name of the pooling, such as "max+mean", that a 1_Pooling/config.json asks for.

    Old files have a key for each pooling, new ones a single key. The result is None if no pooling is chosen.
    """
    names = config.get("pooling_mode") or [
        name for name in CONCAT_ORDER if config.get(POOLINGS[name].sentence_transformers_key or "")
    ]
    if isinstance(names, str):
        return names
    if not isinstance(names, list) or not all(is_utf8_string(name) for name in names):
        raise TypeError(f"pooling_mode is {short_repr(names)}, not a name or a list of names")
    return "+".join(names) or None


def read_module(folder: ModelFolder, module: ModuleEntry) -> Module:
    """Read a module after the pooling. Raises InputError if tmft cannot run it or a file is damaged."""
    kind, path = module.kind, folder.path / module.subfolder
    unsupported = ""
    if kind not in HEAD_MODULES or not module.subfolder:
        unsupported = f"{folder.path}/modules.json has a {kind} in {module.subfolder!r}"
    else:
        config = folder.read_json(f"{module.subfolder}/config.json")
        names = [config.get(key) for key in ("module_input_name", "module_output_name")]
        if config.get("use_residual") or any(name not in (None, "sentence_embedding") for name in names):
            unsupported = f"{path} is a {kind} with a residual or for tokens"
    if unsupported:
        raise InputError(
            f"{unsupported}, which tmft cannot run: name a `pooling`, which is then used without modules "
            "after it",
            "pooling",
        )
    if kind == "Normalize":
        return Module(kind, folder=str(path))
    files = folder.open_weights(module.subfolder)
    return Module(kind, config, files.read_tensors(files.names), str(path))


def read_word_weights(folder: ModelFolder, subfolder: str) -> Tensor:
    """Return the weights of the WordWeights in a subfolder: (V,) float32, in the order of the token ids."""
    files = folder.open_weights(subfolder)
    if files.names != ["emb_layer.weight"]:
        raise InputError(
            f"{files.path} has {', '.join(files.names)}: a {WORD_WEIGHTS} has emb_layer.weight alone"
        )
    return files.read_tensors(files.names)["emb_layer.weight"].float().flatten()


# ------------------------------------------------------------------------------- writing


def check_static_config(config: ModelSettings) -> None:
    """Raise InputError if a static model cannot be saved with these settings.

    Its folder has no Pooling module, so the pooling has to be the plain mean.
    """
    if config.word_weights is not None or config.token_weights or config.pooling != "mean":
        raise InputError(
            "a static model can be saved with the plain mean only: remove token_weights, and "
            "choose `pooling` mean",
            "token_weights",
            "pooling",
        )


def write_st_folder(
    folder: Path,
    config: ModelSettings,
    hidden_size: int,
    tokenizer: Tokenizer,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write the settings to a model folder, in files and keys that all sentence-transformers versions read.

    hidden_size: the dimensions of the token vectors that are pooled. tokenizer: its vocabulary is written
    with the word weights. dtype: the dtype of the encoder and of the modules after the pooling, because
    sentence-transformers needs the same one in both.
    Raises InputError if a file cannot be written, or if word weights come before a Dense and dtype is not
    float32: WordWeights returns float32, but sentence-transformers opens the Dense in dtype.
    """
    has_head_weights = any(module.weights for module in config.modules)
    if dtype != torch.float32 and config.word_weights is not None and has_head_weights:
        name = str(dtype).removeprefix("torch.")
        raise InputError(
            f"dtype {name}: sentence-transformers cannot run {WORD_WEIGHTS} before a Dense in it, choose "
            "float32",
            "dtype",
        )
    is_static, tmft_only = not tokenizer.add_special_tokens, config.tmft_only
    base_modules = {"": STATIC_EMBEDDING} if is_static else {"": "Transformer", "1_Pooling": "Pooling"}
    saved_modules = {  # subfolder -> module
        f"{number}_{module.kind}": module
        for number, module in enumerate(config.modules, start=len(base_modules))
    }
    # subfolder -> name of the class
    kinds = base_modules | {path: module.kind for path, module in saved_modules.items()}
    if config.word_weights is not None:
        kinds = {"": kinds.pop(""), "0_WordWeights": WORD_WEIGHTS, **kinds}
        saved_modules["0_WordWeights"] = word_weights_module(config.word_weights, tokenizer.vocabulary)

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
        "1_Pooling/config.json": pooling_config(pooling, hidden_size),
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
    for path, module in saved_modules.items():
        contents[f"{path}/config.json"] = module.config
        if module.weights:
            save_tensors(module.weights, folder / path / "model.safetensors", dtype)
    for name, content in contents.items():
        write_file(folder / name, json.dumps(content, indent=2) + "\n")


def pooling_config(pooling: str, hidden_size: int) -> dict[str, Any]:
    """Return the content of 1_Pooling/config.json for a pooling such as mean or max+mean.

    hidden_size: the dimensions of the token vectors that are pooled.
    """
    names = pooling.split("+")
    config: dict[str, Any] = {"word_embedding_dimension": hidden_size}
    for name in dict.fromkeys([*POOLING_KEYS, *names]):
        if (key := POOLINGS[name].sentence_transformers_key) is not None:
            config[key] = name in names
    if names != [name for name in CONCAT_ORDER if name in names]:  # in another order, or one of them twice
        config["pooling_mode"] = names
    return config


def word_weights_module(weights: Tensor, vocabulary: list[str]) -> Module:
    """Return a WordWeights module, ready to be written.

    weights: (V,) or longer, a weight for each token. vocabulary: the V tokens. Both are in the order of the
    token ids.
    """
    values = weights[: len(vocabulary)]
    word_weights = dict(zip(vocabulary, values.tolist(), strict=True))
    config = {"vocab": vocabulary, "word_weights": word_weights}
    return Module(WORD_WEIGHTS, config, {"emb_layer.weight": values[:, None].clone()})
