"""Read and write the folder of a sentence-transformers model, except for its encoder and its tokenizer.

modules.json lists the modules that are applied to a sentence, in this order: Transformer, WordWeights if
tokens are weighted, Pooling, then any number of MODULE_CLASSES, each in its own subfolder. In a static model,
StaticEmbedding takes the place of the first three. Settings that sentence-transformers does not support are
stored in tmft.json; the files of sentence-transformers then contain the closest setting that it supports.
"""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tmft.checkpoints.model_folder import (
    MODULES_WITH_WEIGHTS,
    STATIC_EMBEDDING,
    WORD_WEIGHTS,
    ModelFolder,
    ModuleEntry,
    check_known_keys,
)
from tmft.checkpoints.save import save_tensors
from tmft.embedding.layer_mix import format_layer_mix, layer_mix_width
from tmft.embedding.modules import MODULE_CLASSES
from tmft.embedding.prompts import NO_PROMPTS
from tmft.embedding.similarity import SIMILARITIES
from tmft.errors import InputError, check_choice, short_repr
from tmft.io.files import get_typed, reading
from tmft.pooling import POOLINGS

if TYPE_CHECKING:
    from tmft.sentence_encoder import SentenceEncoder

TMFT_FORMAT = 1  # of tmft.json; another number means that its keys have another meaning
# Poolings whose keys all versions of sentence-transformers know: they are written even if they are false.
POOLING_KEYS = ("cls", "mean", "max", "mean_sqrt_len_tokens")
# The order in which sentence-transformers concatenates poolings.
CONCAT_ORDER = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
KnownKeys = dict[str, tuple[object, ...] | None]
# For each file the keys that it may have. The values are those under which the result is the same as without
# the key; None: the key is read. Everything else is refused (check_known_keys), since sentence-transformers
# would compute other embeddings than tmft.
TRANSFORMER_KEYS: KnownKeys = {
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
ARGUMENT_KEYS: KnownKeys = {
    "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
    "padding_side": ("left", "right"),
    **dict.fromkeys(("torch_dtype", "dtype"), ("float32", "auto")),
    # sentence-transformers removes trust_remote_code as well
    **dict.fromkeys(("add_pooling_layer", "trust_remote_code", "use_fast"), (True, False)),
    **dict.fromkeys(("low_cpu_mem_usage", "use_safetensors"), (True, False)),
    **dict.fromkeys(("use_memory_efficient_attention", "unpad_inputs"), (True, False)),
}
POOLING_CONFIG_KEYS: KnownKeys = {
    **dict.fromkeys(("word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt")),
    **dict.fromkeys(key for entry in POOLINGS.values() if (key := entry.sentence_transformers_key)),
}
SENTENCE_NAMES: KnownKeys = dict.fromkeys(
    ("module_input_name", "module_output_name"), ("sentence_embedding",)
)
HEAD_CONFIG_KEYS: dict[str, KnownKeys] = {
    "Dense": {
        **dict.fromkeys(("in_features", "out_features", "bias", "activation_function")),
        **SENTENCE_NAMES,
        "use_residual": (False,),
    },
    "LayerNorm": {"dimension": None},
    "Normalize": SENTENCE_NAMES,
}
TMFT_KEYS: KnownKeys = dict.fromkeys(
    ("format", "pooling", "layer_mix", "token_weights", "prompts", "default_prompt_name")
)
TEXT_MODALITY = {"method": "forward", "method_output_name": "last_hidden_state"}
# The modules that a sentence may pass, in their order.
CHAIN = re.compile(
    rf"(Transformer( {WORD_WEIGHTS})? Pooling|{STATIC_EMBEDDING})( ({'|'.join(MODULE_CLASSES)}))*"
)
# What helps where what follows the encoder cannot be read or run.
REPLACE_MODULES = "name a `pooling`, which is then used without modules after it"
log: logging.Logger = logging.getLogger("tmft")


@dataclass
class ModelSettings:
    """The settings in a model folder, besides those of the encoder and the tokenizer."""

    pooling: str | None = None  # a name as in tmft/pooling.py, such as max+mean; None: none is stated
    max_length: int | None = None  # tokens to which sentences are truncated; None: it is not stated
    lower_case: bool = False  # whether the text is lower-cased before it is tokenized
    # Name -> a prefix of a sentence, or a template in which [X] stands for the sentence.
    prompts: dict[str, str] = field(default_factory=NO_PROMPTS.copy)
    default_prompt_name: str | None = None  # the prompt that is used if none is asked for
    similarity_fn_name: str = "cosine"  # how embeddings are compared, one of SIMILARITIES
    truncate_dim: int | None = None  # how many dimensions of an embedding are kept; None: all
    include_prompt: bool = True  # whether the tokens of a prompt are pooled
    layer_mix: str | None = None  # hidden states whose mean is pooled, such as "1+12"; None: the last one
    token_weights: str | None = None  # the name of token weights that depend on positions, "no-prompt"
    # (V,) float32, the weight of each token of the vocabulary in mean pooling; None: all are equal.
    word_weights: Tensor | None = None
    modules: list[nn.Module] = field(default_factory=list)  # those after the pooling, in their order


# ------------------------------------------------------------------------------- reading


def read_settings(folder: ModelFolder, pooling: str | None = None) -> ModelSettings:
    """Return the settings in a model folder, besides those of the encoder and the tokenizer.

    pooling: the one that is used instead of that of the folder. If it is given, token weights, the modules
    after the pooling, the number of dimensions to keep and the similarity function are ignored, and the files
    of the modules are not read. If there is none anywhere, it is the usual one of the architecture.
    Raises InputError if a file is damaged or missing, or if tmft cannot run one of the modules.
    """
    subfolders = {module.kind: module.subfolder for module in reversed(folder.modules)}
    readers = {"config_sentence_transformers.json": parse_st_config}  # what a later file states replaces
    if pooling is None and (pooling_folder := subfolders.get("Pooling", "" if subfolders else "1_Pooling")):
        pooling_file, problem = f"{pooling_folder}/config.json", ""
        if subfolders and folder.find(pooling_file) is None:
            problem = f"no {pooling_file} in {folder.name}, but modules.json names it"
        for path in [] if subfolders else sorted(folder.path.glob("[0-9]*_*/")):
            if path.name.partition("_")[2] in (WORD_WEIGHTS, *MODULE_CLASSES):
                problem = f"no modules.json in {folder.name}, but it has {path.name}"
        if problem:  # the embeddings would be the plain mean
            raise InputError(f"{problem}: restore the file, or {REPLACE_MODULES}", "pooling")
        readers[pooling_file] = parse_pooling_config
    readers |= {folder.transformer_config_file: parse_transformer_config, "tmft.json": parse_tmft_json}
    settings = ModelSettings()
    for file_name, parse in readers.items():
        stated = folder.parse_json(file_name, parse)
        prompts = settings.prompts | stated.get("prompts", {})
        settings = replace(settings, **stated | {"prompts": prompts})
    if settings.default_prompt_name is not None:
        check_choice("default_prompt_name", settings.default_prompt_name, settings.prompts)

    kinds = [module.kind for module in folder.modules]
    has_encoder = not kinds or kinds[0] in ("Transformer", STATIC_EMBEDDING)
    if kinds and not (CHAIN.fullmatch(" ".join(kinds)) or (has_encoder and pooling is not None)):
        remedy = REPLACE_MODULES if has_encoder else "use a model that begins with a Transformer"
        raise InputError(
            f"{folder.path}/modules.json has {short_repr(', '.join(kinds))}, which tmft cannot run: it runs "
            f"a Transformer, a Pooling and then {', '.join(MODULE_CLASSES)}; {remedy}",
            "pooling",
        )
    if pooling is not None:
        return replace(
            settings,
            pooling=pooling,
            similarity_fn_name="cosine",
            truncate_dim=None,
            token_weights=None,
            include_prompt=True,
        )
    settings.pooling = settings.pooling or usual_pooling(folder)
    if settings.similarity_fn_name not in SIMILARITIES:
        log.warning(
            "%s has similarity_fn_name %s: embeddings are compared by their cosine",
            folder.path,
            settings.similarity_fn_name,
        )
        settings.similarity_fn_name = "cosine"
    if (word_weights := subfolders.get(WORD_WEIGHTS)) is not None:
        if settings.pooling != "mean" and folder.find("tmft.json") is None:
            problem = f"{folder.path} weights tokens ({WORD_WEIGHTS}) before the pooling {settings.pooling!r}"
            raise InputError(f"{problem}, which tmft cannot run: {REPLACE_MODULES}", "pooling")
        files = folder.open_weights(word_weights)
        with reading(files.path):
            settings.word_weights = files.read_tensors(files.names)["emb_layer.weight"].float().flatten()
    try:
        settings.modules = [read_module(folder, one) for one in folder.modules if one.kind in MODULE_CLASSES]
    except InputError as error:
        raise InputError(f"{error}, or {REPLACE_MODULES}", "pooling") from None
    return settings


def usual_pooling(folder: ModelFolder) -> str:
    """Return the pooling of a folder that states none, and log it.

    It is "mean", and without modules.json "lasttoken" for a causal language model: the first name in
    "architectures" of config.json ends with ForCausalLM, and "is_causal" is not false. This is the choice of
    sentence-transformers 6.2.
    """
    config = folder.config_dict
    first = str(next(iter(config.get("architectures") or ()), ""))
    is_causal = first.endswith("ForCausalLM") and bool(config.get("is_causal", True))
    pooling = "lasttoken" if is_causal and not folder.modules else "mean"
    log.log(
        logging.INFO if pooling == "mean" else logging.WARNING,
        "%s states no pooling: its architecture is usually pooled by %s, which is used",
        folder.name,
        pooling,
    )
    return pooling


def read_module(folder: ModelFolder, entry: ModuleEntry) -> nn.Module:
    """Return a module after the pooling, in float32, with its weights."""
    parse = partial(check_known_keys, known=HEAD_CONFIG_KEYS[entry.kind])
    config = folder.parse_json(f"{entry.subfolder}/config.json", parse)
    weights: dict[str, Tensor] = {}
    if entry.kind in MODULES_WITH_WEIGHTS:
        files = folder.open_weights(entry.subfolder)
        weights = files.read_tensors(files.names)
    with reading(folder.path / entry.subfolder):
        with torch.device("meta"):  # allocates nothing, whatever sizes config.json claims
            module = MODULE_CLASSES[entry.kind].from_config(config)
        # A copy: a tensor of a file may begin at any address, on which the last bits of sums depend.
        prefix = module.weight_prefix
        state_dict = {name.removeprefix(prefix): weight.float().clone() for name, weight in weights.items()}
        module.load_state_dict(state_dict, assign=True)
    return module


# Each of the next functions takes the content of one file, and returns the fields of ModelSettings that it
# states. A wrong value raises ValueError or TypeError, and ModelFolder, which reads the files, adds the name
# of the file to the message.


def parse_st_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return what a config_sentence_transformers.json states.

    This file alone may have keys that nobody knows: sentence-transformers does not read them either.
    """
    if (model_type := content.get("model_type") or "SentenceTransformer") != "SentenceTransformer":
        raise ValueError(f"model_type is {short_repr(model_type)}, not SentenceTransformer")
    similarity_fn_name = get_typed(content, "similarity_fn_name", str) or "cosine"
    truncate_dim = get_typed(content, "truncate_dim", int)
    return {**parse_prompts(content), "similarity_fn_name": similarity_fn_name, "truncate_dim": truncate_dim}


def parse_tmft_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return what a tmft.json states; it replaces what the other files state."""
    if (number := content.get("format", TMFT_FORMAT)) != TMFT_FORMAT:
        raise ValueError(f"its format is {short_repr(number)}, this version of tmft reads {TMFT_FORMAT}")
    check_known_keys(content, TMFT_KEYS)
    names = {key: get_typed(content, key, str) for key in ("pooling", "layer_mix", "token_weights")}
    return {key: value for key, value in (parse_prompts(content) | names).items() if value is not None}


def parse_prompts(content: dict[str, Any]) -> dict[str, Any]:
    """Return the prompts and the name of the default prompt, which both files may state."""
    texts = get_typed(content, "prompts", dict) or {}
    prompts = {key: get_typed(texts, key, str) or "" for key in texts}
    return {"prompts": prompts, "default_prompt_name": get_typed(content, "default_prompt_name", str)}


def parse_transformer_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return what a sentence_bert_config.json states."""
    check_known_keys(content, TRANSFORMER_KEYS)
    modalities = get_typed(content, "modality_config", dict) or {"text": TEXT_MODALITY}
    if modalities.get("text") != TEXT_MODALITY:
        raise ValueError(
            f"modality_config has {short_repr(modalities.get('text'))} for text, not the last layer"
        )
    for key in TRANSFORMER_KEYS:
        if key.endswith(("_args", "_kwargs")):
            check_known_keys(get_typed(content, key, dict) or {}, ARGUMENT_KEYS)
    max_length = get_typed(content, "max_seq_length", int)
    return {"max_length": max_length, "lower_case": bool(content.get("do_lower_case"))}


def parse_pooling_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return what the config.json of a Pooling states: a pooling such as "max+mean", and include_prompt.

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


# ------------------------------------------------------------------------------- writing


def check_can_be_saved(model: "SentenceEncoder") -> None:
    """Raise InputError if a model has something that cannot be saved."""
    check_choice("similarity_fn_name", model.similarity_fn_name, SIMILARITIES)
    if other := [module for module in model.head_modules if type(module) not in MODULE_CLASSES.values()]:
        known = ", ".join(MODULE_CLASSES)
        raise InputError(f"a {type(other[0]).__name__} after the pooling cannot be saved: use one of {known}")
    if not model.tokenizer.add_special_tokens:
        check_static_settings(model.pooling, model.token_weights is not None)


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


def prompt_templates(model: "SentenceEncoder") -> dict[str, str]:
    """Return the prompts that sentence-transformers lacks: those with text after the sentence, or [M]."""
    return {
        name: text
        for name, text in model.prompts.items()
        if "[X" in text.removesuffix("[X]") or "[M]" in text
    }


def word_weights(model: "SentenceEncoder") -> Tensor | None:
    """Return the weight of each token of the vocabulary, if they do not depend on its position, or None."""
    weights = model.token_weights
    return None if weights is None or weights.is_positional else weights.table.cpu()


def is_supported(pooling: str) -> bool:
    """Return whether sentence-transformers has every part of a pooling."""
    return all(POOLINGS[name].sentence_transformers_key for name in pooling.split("+"))


def tmft_settings(model: "SentenceEncoder") -> dict[str, str | dict[str, str]]:
    """Return the settings that sentence-transformers does not support: the content of tmft.json."""
    weights, templates = model.token_weights, prompt_templates(model)
    # sentence-transformers applies word weights to the hidden states, tmft in the pooling. Both are the
    # same before the mean alone, so before another pooling tmft.json says whose meaning the folder has.
    weights_differ = word_weights(model) is not None and model.pooling != "mean"
    settings = {
        "pooling": model.pooling if weights_differ or not is_supported(model.pooling) else None,
        "layer_mix": format_layer_mix(model.layers) if model.layers else None,
        "token_weights": "no-prompt" if weights is not None and weights.is_positional else None,
        "prompts": templates,
        "default_prompt_name": model.default_prompt_name if model.default_prompt_name in templates else None,
    }
    return {key: value for key, value in settings.items() if value}


def settings_to_files(
    model: "SentenceEncoder", dtype: torch.dtype
) -> dict[str, str | Callable[[Path], None]]:
    """Return {file name: content} of the settings, in files that all sentence-transformers versions read.

    A content is what write_file takes.
    dtype: that of the encoder and of the modules after the pooling, because sentence-transformers needs the
    same one in both. Raises InputError if word weights come before a Dense and it is not float32: WordWeights
    returns float32, but sentence-transformers opens the Dense in dtype.
    """
    values, vocabulary = word_weights(model), model.tokenizer.vocabulary
    if dtype != torch.float32 and values is not None and [*model.head_modules.parameters()]:
        name = str(dtype).removeprefix("torch.")
        problem = f"dtype {name}: sentence-transformers cannot run {WORD_WEIGHTS} before a Dense in it"
        raise InputError(f"{problem}, choose float32", "dtype")
    is_static = not model.tokenizer.add_special_tokens
    # subfolder -> name of the class
    kinds = {"": STATIC_EMBEDDING} if is_static else {"": "Transformer", "1_Pooling": "Pooling"}
    contents: dict[str, Any] = {}  # of JSON files
    weights: dict[str, dict[str, Tensor]] = {}  # of the modules in subfolders
    for number, module in enumerate(model.head_modules, start=len(kinds)):
        kind = type(module).__name__
        subfolder = f"{number}_{kind}"
        kinds[subfolder], contents[f"{subfolder}/config.json"] = kind, module.config
        prefix = module.weight_prefix
        weights[subfolder] = {f"{prefix}{name}": value.cpu() for name, value in module.state_dict().items()}
    if values is not None:
        kinds = {"": kinds.pop(""), "0_WordWeights": WORD_WEIGHTS, **kinds}
        values = values[: len(vocabulary)]
        contents["0_WordWeights/config.json"] = {
            "vocab": vocabulary,
            "word_weights": dict(zip(vocabulary, values.tolist(), strict=True)),
        }
        weights["0_WordWeights"] = {"emb_layer.weight": values[:, None].clone()}

    prefixes = model.prompts.keys() - prompt_templates(model).keys()
    prompts = {name: model.prompts[name].removesuffix("[X]") for name in model.prompts if name in prefixes}
    default_prompt_name = model.default_prompt_name if model.default_prompt_name in prompts else None
    contents["modules.json"] = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds.items())
    ]
    if not is_static:
        contents["1_Pooling/config.json"] = pooling_config(model)
        contents["sentence_bert_config.json"] = {"max_seq_length": model.max_length, "do_lower_case": False}
    contents["config_sentence_transformers.json"] = {
        # The oldest versions that read these files: sentence-transformers warns if its own version is older.
        "__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"},
        "prompts": NO_PROMPTS | prompts,
        "default_prompt_name": default_prompt_name,
        "similarity_fn_name": model.similarity_fn_name,
        **({} if model.truncate_dim is None else {"truncate_dim": model.truncate_dim}),
    }
    if settings := tmft_settings(model):
        contents["tmft.json"] = {"format": TMFT_FORMAT, **settings}
    files: dict[str, str | Callable[[Path], None]] = {
        f"{subfolder}/model.safetensors": partial(save_tensors, tensors, dtype=dtype)
        for subfolder, tensors in weights.items()
        if tensors
    }
    return files | {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}


def pooling_config(model: "SentenceEncoder") -> dict[str, Any]:
    """Return the content of 1_Pooling/config.json: the pooling of a model, or the mean if it is its own."""
    names = model.pooling.split("+") if is_supported(model.pooling) else ["mean"]
    width = layer_mix_width(model.layers, model.encoder.config)
    config: dict[str, Any] = {"word_embedding_dimension": width}
    for name in dict.fromkeys([*POOLING_KEYS, *names]):
        config[str(POOLINGS[name].sentence_transformers_key)] = name in names
    if names != [name for name in CONCAT_ORDER if name in names]:  # in another order, or one of them twice
        config["pooling_mode"] = names
    if not model.include_prompt:
        config["include_prompt"] = False
    return config
