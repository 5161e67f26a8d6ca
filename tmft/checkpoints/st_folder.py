"""Read and write the folder of a sentence-transformers model, except for its encoder and its tokenizer.

modules.json lists the modules that are applied to a sentence, in this order: Transformer, WordWeights if
tokens are weighted, Pooling, then any number of MODULE_CLASSES, each in its own subfolder. In a static model,
StaticEmbedding takes the place of the first three. Settings that sentence-transformers does not support are
stored in tmft.json; the files of sentence-transformers then contain the closest setting that it supports.
"""

import json
import logging
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
from tmft.errors import InputError, check_choice, describe_error, did_you_mean, short_repr
from tmft.io.files import get_typed
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
POOLING_CONFIG_KEYS: KnownKeys = {
    **dict.fromkeys(("word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt")),
    **dict.fromkeys(key for entry in POOLINGS.values() if (key := entry.sentence_transformers_key)),
}
HEAD_CONFIG_KEYS: dict[str, KnownKeys] = {
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
}
TMFT_KEYS: KnownKeys = dict.fromkeys(
    ("format", "pooling", "layer_mix", "token_weights", "prompts", "default_prompt_name")
)
TEXT_MODALITY = {"method": "forward", "method_output_name": "last_hidden_state"}
# What helps where what follows the encoder cannot be read or run.
REPLACE_MODULES = "name a `pooling`, which is then used without modules after it"
log: logging.Logger = logging.getLogger("tmft")


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
    token_weights: str | None = None
    word_weights: Tensor | None = None
    modules: list[nn.Module] = field(default_factory=list)


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
        check_is_complete(folder, pooling_folder)
        readers[f"{pooling_folder}/config.json"] = parse_pooling_config
    readers |= {folder.transformer_config_file: parse_transformer_config, "tmft.json": parse_tmft_json}
    settings, prompts = ModelSettings(), NO_PROMPTS
    for file_name, parse in readers.items():
        stated = folder.parse_json(file_name, parse)
        prompts = prompts | stated.get("prompts", {})
        settings = replace(settings, **stated | {"prompts": prompts})
    if (name := settings.default_prompt_name) not in (None, *prompts):
        known = f"{', '.join(prompts)}{did_you_mean(str(name), prompts)}"
        problem = f"no prompt of the default_prompt_name {short_repr(name)}"
        raise InputError(f"{problem} ({folder.path}): choose one of {known}")
    kinds = [module.kind for module in folder.modules]
    if kinds and kinds[0] not in ("Transformer", STATIC_EMBEDDING):
        raise InputError(
            f"{folder.path}/modules.json begins with a {kinds[0]}, which tmft cannot run: use a model whose "
            "first module is the Transformer of sentence-transformers"
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
        if files.names != ["emb_layer.weight"]:
            raise InputError(
                f"{files.path} has {', '.join(files.names)}: a {WORD_WEIGHTS} has emb_layer.weight alone"
            )
        settings.word_weights = files.read_tensors(files.names)["emb_layer.weight"].float().flatten()
    if problem := find_chain_problem(kinds) if kinds else "":
        problem = f"{folder.path}/modules.json {problem}, which tmft cannot run"
        raise InputError(f"{problem}: {REPLACE_MODULES}", "pooling")
    settings.modules = [
        read_module(folder, entry) for entry in folder.modules if entry.kind in MODULE_CLASSES
    ]
    return settings


def check_is_complete(folder: ModelFolder, pooling_folder: str) -> None:
    """Raise InputError if a folder has modules, but no modules.json, or a Pooling without its file.

    Else the embeddings would be those of the plain mean. pooling_folder: that of the Pooling.
    """
    missing, reason = "", ""
    if folder.modules and folder.find(f"{pooling_folder}/config.json") is None:
        missing, reason = f"{pooling_folder}/config.json", "modules.json names it"
    for path in [] if folder.modules else sorted(folder.path.glob("[0-9]*_*/")):
        if path.name.partition("_")[2] in (WORD_WEIGHTS, *MODULE_CLASSES):
            missing, reason = "modules.json", f"it has {path.name}"
    if missing:
        problem = f"no {missing} in {folder.name}, but {reason}"
        raise InputError(f"{problem}: restore the file, or {REPLACE_MODULES}", "pooling")


def usual_pooling(folder: ModelFolder) -> str:
    """Return the pooling of a folder that states none, and log it.

    It is "mean", and without modules.json "lasttoken" for a causal language model: the first name in
    "architectures" of config.json ends with ForCausalLM, and "is_causal" is not false. This is the choice of
    sentence-transformers 6.2.
    """
    config = folder.config_dict
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    is_causal = str(first).endswith("ForCausalLM") and bool(config.get("is_causal", True))
    pooling = "lasttoken" if is_causal and not folder.modules else "mean"
    log.log(
        logging.INFO if pooling == "mean" else logging.WARNING,
        "%s states no pooling: its architecture is usually pooled by %s, which is used",
        folder.name,
        pooling,
    )
    return pooling


def find_chain_problem(kinds: list[str]) -> str:
    """Return what is wrong with the order of the modules in a modules.json; '' if nothing is.

    kinds: their classes. A sentence passes a Transformer, WordWeights (if any), a Pooling, then any number of
    MODULE_CLASSES; in a static model a StaticEmbedding takes the place of the first three.
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
    if strange := [kind for kind in others[len(before_head) :] if kind not in MODULE_CLASSES]:
        return f"has a {short_repr(strange[0])} after the pooling"
    return ""


def read_module(folder: ModelFolder, entry: ModuleEntry) -> nn.Module:
    """Return a module after the pooling, in float32, with its weights.

    Raises InputError if tmft cannot run it, or if a file is damaged.
    """
    try:
        parse = partial(parse_module_config, known=HEAD_CONFIG_KEYS[entry.kind])
        config = folder.parse_json(f"{entry.subfolder}/config.json", parse)
    except InputError as error:
        raise InputError(f"{error}, or {REPLACE_MODULES}", "pooling") from None
    weights: dict[str, Tensor] = {}
    if entry.kind in MODULES_WITH_WEIGHTS:
        files = folder.open_weights(entry.subfolder)
        weights = files.read_tensors(files.names)
    try:
        with torch.device("meta"):  # allocates nothing, whatever sizes config.json claims
            module = MODULE_CLASSES[entry.kind].from_config(config)
        # A copy: a tensor of a file may begin at any address, on which the last bits of sums depend.
        module.load_state_dict(
            {
                name.removeprefix(module.weight_prefix): weight.float().clone()
                for name, weight in weights.items()
            },
            assign=True,
        )
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{folder.path / entry.subfolder} is not a complete {entry.kind} ({describe_error(error)}): "
            "restore its files"
        ) from None
    return module


# Each of the next functions takes the content of one file. A wrong value raises ValueError or TypeError, and
# ModelFolder, which reads the files, adds the name of the file to the message.


def parse_st_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelSettings that a config_sentence_transformers.json states.

    This file alone may have keys that nobody knows: sentence-transformers does not read them either.
    """
    if (model_type := content.get("model_type") or "SentenceTransformer") != "SentenceTransformer":
        raise ValueError(f"model_type is {short_repr(model_type)}, not SentenceTransformer")
    truncate_dim = get_typed(content, "truncate_dim", int)
    if truncate_dim is not None and truncate_dim < 1:
        raise ValueError(f"truncate_dim is {short_repr(truncate_dim)}, not 1 or more")
    similarity_fn_name = get_typed(content, "similarity_fn_name", str) or "cosine"
    return {**parse_prompts(content), "similarity_fn_name": similarity_fn_name, "truncate_dim": truncate_dim}


def parse_tmft_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelSettings that a tmft.json states; they replace those of the other files."""
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


def parse_module_config(content: dict[str, Any], known: KnownKeys) -> dict[str, Any]:
    """Return the config.json of a module after the pooling. known: the keys that it may have."""
    check_known_keys(content, known)
    activation = content.get("activation_function")
    if activation is not None and not str(activation).startswith("torch.nn."):
        raise ValueError(f"activation_function is {short_repr(activation)}, which is no class of torch.nn")
    return content


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
        raise InputError(
            f"dtype {name}: sentence-transformers cannot run {WORD_WEIGHTS} before a Dense in it, choose "
            "float32",
            "dtype",
        )
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

    prompts = {
        name: text.removesuffix("[X]")
        for name, text in model.prompts.items()
        if name not in prompt_templates(model)
    }
    default_prompt_name = model.default_prompt_name if model.default_prompt_name in prompts else None
    contents["modules.json"] = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds.items())
    ]
    if not is_static:
        contents["1_Pooling/config.json"] = pooling_config(
            model.pooling if is_supported(model.pooling) else "mean",
            layer_mix_width(model.layers, model.encoder.config),
            model.include_prompt,
        )
        contents["sentence_bert_config.json"] = {
            "max_seq_length": model.max_length,
            "do_lower_case": False,
        }
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
