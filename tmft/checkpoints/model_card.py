"""Make the model card of a saved model, the text of its README.md."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmft.checkpoints.hub import KNOWN_CHECKPOINTS
from tmft.checkpoints.st_folder import is_supported, prompt_templates, tmft_settings, word_weights
from tmft.embedding.layer_mix import format_layer_mix
from tmft.errors import sanitize
from tmft.io.formatting import MAX_NAME_LENGTH, escape_markdown
from tmft.models.families import FAMILIES

if TYPE_CHECKING:
    from tmft.sentence_encoder import SentenceEncoder

PLACEHOLDER_PATH = "path/to/this/folder"
MAX_NOTE_LENGTH = 1000  # characters of a compatibility note; longer ones are shortened


def format_model_card(title: str, text: str, **front_matter: Any) -> str:
    """Return a model card in Markdown: metadata, a title and a text.

    title: plain text, which is escaped. text: Markdown. front_matter: the metadata that the hub reads, with
    any values that JSON can express; empty values are omitted.
    """
    metadata = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}"  # JSON is YAML
        for key, value in front_matter.items()
        if value
    ]
    return "\n".join(["---", *metadata, "---", "", f"# {escape_markdown(title)}", "", text.strip(), ""])


def parse_hub_id(source: str) -> str:
    """Return the hub id of a checkpoint without its revision; '' if it is not a hub id, but a folder.

    source: a hub id with an optional @revision, or a folder.
    """
    name = source.partition("@")[0]
    is_id = re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", name, re.ASCII)
    return name if is_id and not os.path.exists(source) else ""


def display_name(source: str) -> str:
    """Return the hub id of a checkpoint, or the name of its folder, to be shown in a card."""
    return parse_hub_id(source) or sanitize(Path(source).name, MAX_NAME_LENGTH)


@dataclass(frozen=True)
class ModelCardData:
    """What a run adds to the card of its model.

    results: Markdown about the training and the scores.
    base: the checkpoint that training started from; None means the one that the model was loaded from.
    scores: tuples (data set, split, metric, score) for the metadata, such as ("stsb", "test", "spearman",
    0.84).
    teachers: the models whose embeddings were learned.
    kept_layers: the layers of the checkpoint that were kept, counted from 0; None: the first ones; (): none,
        the layers of a student are its own.
    full_depth: the number of layers of the checkpoint; None if it is not known.
    """

    results: str = ""
    base: str | None = None
    scores: tuple[tuple[str, str, str, float], ...] = ()
    teachers: tuple[str, ...] = ()
    kept_layers: tuple[int, ...] | None = None
    full_depth: int | None = None


def sentence_model_card(
    model: "SentenceEncoder",
    data: ModelCardData | None = None,
    name: str = PLACEHOLDER_PATH,
    graph_file: str = "",
) -> str:
    """Return the model card of a sentence encoder, in Markdown.

    data: training details and scores of a run; None: those that the model has. name: the folder or hub id
    that the code snippets load. graph_file: path in the folder of the ONNX file, or of encode.py of the
    compact format; '' if the model is stored as weights.
    """
    encoder = model.encoder
    data = data or model.card_data or ModelCardData()
    num_layers = len(encoder.layers)
    first_layers = tuple(range(num_layers))
    kept_layers = data.kept_layers if data.kept_layers is not None else encoder.kept_layers
    keeps_first = kept_layers in (None, first_layers)
    if data.full_depth is not None:
        is_truncated = num_layers < data.full_depth
    elif data.base not in (None, model.source):
        is_truncated = True
    else:
        is_truncated = f" {num_layers} of {num_layers} layer" not in model.load_report
    base = parse_hub_id(model.source if data.base is None else data.base)
    origin = display_name(data.base or model.source) or "an encoder"
    teachers = " and ".join(map(display_name, data.teachers))
    if kept_layers == ():
        title = f"Sentence embeddings: a student of {teachers}"
    elif is_truncated:
        depth = describe_depth(num_layers, None if keeps_first else kept_layers)
        title = f"Sentence embeddings from {depth} of {origin}"
    else:
        title = f"Sentence embeddings: {origin}"
    made = "Saved by tmft"
    if data.teachers:
        made = f"A student of {teachers}, made by tmft"
    elif keeps_first:
        made = "Made by" if is_truncated and data.results else "Saved by tmft, a library for"
        made += " truncated model fine-tuning (Rep, Dukić and Šnajder, Findings of EMNLP 2024)"
    layers = format_layer_mix(model.layers or (num_layers,))
    language, license_name = KNOWN_CHECKPOINTS.get(base, ("", ""))
    note = escape_markdown(describe_compatibility(model), MAX_NOTE_LENGTH)
    warning = f"**In other libraries:** {note}\n\n" if note else ""
    library = "tmft" if graph_file == "encode.py" else "sentence-transformers"
    in_transformers = "" if graph_file else transformers_section(model, name)
    return format_model_card(
        title,
        f"""
Hidden state {layers}, pooling {model.pooling!r}, {model.dimensions} dimensions, \
at most {model.max_length} tokens.
A vocabulary of {encoder.config.vocab_size:,} tokens. {made}.

{warning}```python
>>> sentences = ["A man plays a guitar.", "Someone makes music."]
{usage_snippet(name, model.max_length, graph_file)}
```
{in_transformers}{data.results}""",
        language=language,
        license=license_name,
        tags=list(dict.fromkeys([library, "sentence-similarity", "feature-extraction", "tmft"])),
        pipeline_tag="sentence-similarity",
        library_name=library,
        base_model=base,
        **{"model-index": model_index(title, data) if data.scores else None},
    )


def describe_compatibility(model: "SentenceEncoder") -> str:
    """Return what other libraries compute differently with the folder of a model; '' if nothing."""
    settings, weights, notes = tmft_settings(model), word_weights(model), []
    if not is_supported(model.pooling):
        notes.append(f"has no pooling {model.pooling!r} and takes the mean")
    if "layer_mix" in settings:
        notes.append(f"takes the last hidden state, not the mix {settings['layer_mix']}")
    if "token_weights" in settings:
        notes.append(
            f"takes the plain mean of all tokens, without the token weights {settings['token_weights']}"
        )
    notes += [f"leaves out the prompt {text!r}" for text in prompt_templates(model).values()]
    if weights is not None and (weights == 0).any():
        notes.append(
            "gives a sentence whose words all have weight 0 a vector of zeros, instead of the plain mean"
        )
    if weights is not None and model.pooling != "mean":
        notes.append(f"weights tokens differently before the pooling {model.pooling!r}")
    sentences = [f"sentence-transformers {note}." for note in notes]
    config, layers = model.encoder.config, len(model.encoder.layers)
    family = FAMILIES[config.model_type]
    if layers < family.min_layers:
        sentences.append(f"transformers cannot run a {config.model_type} of {layers} layers; tmft can.")
    elif "decoder" in config.components:
        sentences.append(
            "transformers opens it as a T5Model and warns that queries and keys of the decoder's"
            " self-attention are missing: the first output, last_hidden_state[:, 0] of one start token, does"
            " not need them."
        )
    return " ".join(sentences)


def describe_depth(num_layers: int, kept_layers: Sequence[int] | None) -> str:
    """Return the layers of a model in words: "the first 3 layers", "layers 0, 2 and 5 (counted from 0)".

    kept_layers: the numbers of the layers of the checkpoint; None: the first num_layers.
    """
    if kept_layers is None:
        return {0: "the embeddings", 1: "the first layer"}.get(num_layers, f"the first {num_layers} layers")
    if len(kept_layers) == 1:
        return f"layer {kept_layers[0]} (counted from 0)"
    *others, last = kept_layers
    return f"layers {', '.join(map(str, others))} and {last} (counted from 0)"


def usage_snippet(model_name: str, max_length: int, graph_file: str) -> str:
    """Return a code snippet that encodes with sentence-transformers or what else opens the folder.

    model_name, graph_file: see sentence_model_card. max_length: the number of tokens to which sentences are
    truncated.
    """
    with_tmft = f"""
>>> from tmft import SentenceEncoder
>>> embeddings = SentenceEncoder.from_pretrained("{model_name}").encode(sentences)"""
    if not graph_file:
        return f"""\
>>> from sentence_transformers import SentenceTransformer
>>> embeddings = SentenceTransformer("{model_name}").encode(sentences){with_tmft}"""
    if graph_file == "encode.py":
        return f"""\
>>> import sys
>>> sys.path.append("{model_name}")  # its encode.py needs numpy and tokenizers alone
>>> from encode import Encoder
>>> embeddings = Encoder("{model_name}").encode(sentences){with_tmft}"""
    file_name = graph_file.removeprefix("onnx/")
    is_default = file_name == "model.onnx"  # that sentence-transformers looks for
    options = "" if is_default else f', model_kwargs={{"file_name": "{file_name}"}}'
    return f"""\
>>> from sentence_transformers import SentenceTransformer  # with optimum-onnx
>>> model = SentenceTransformer("{model_name}", backend="onnx"{options})
>>> embeddings = model.encode(sentences)
>>> import onnxruntime, tokenizers  # or, from a folder, with these two alone
>>> tokenizer = tokenizers.Tokenizer.from_file("{model_name}/tokenizer.json")
>>> tokenizer.enable_truncation({max_length})
>>> tokenizer.enable_padding()
>>> batch = tokenizer.encode_batch(sentences)
>>> ids, mask = [text.ids for text in batch], [text.attention_mask for text in batch]
>>> session = onnxruntime.InferenceSession("{model_name}/{graph_file}")
>>> [embeddings] = session.run(["sentence_embedding"], {{"input_ids": ids, "attention_mask": mask}})"""


def transformers_section(model: "SentenceEncoder", model_name: str) -> str:
    """Return the section that shows how to use the model in transformers; '' if that is not possible.

    model_name: the folder or hub id that the code loads.
    """
    family, components = FAMILIES[model.encoder.config.model_type], model.encoder.config.components
    name = family.transformers_class
    if not name or len(model.encoder.layers) < family.min_layers or "decoder" in components:
        return ""
    more = [*model.head_modules] or model.prompt or tmft_settings(model) or model.truncate_dim
    is_plain_mean = not more and model.pooling == "mean" and model.include_prompt
    is_plain_mean = is_plain_mean and model.token_weights is None
    scope = "" if is_plain_mean else " up to the hidden states, which then have to be pooled as above"
    # with a pooler, transformers would warn that its weights, which are not in the files, are missing
    no_pooler = ", add_pooling_layer=False" if "pooler" in family.components and not components else ""
    mean = """
>>> mask = batch["attention_mask"][..., None]
>>> embeddings = (hidden * mask).sum(1) / mask.sum(1)"""
    return f"""
In transformers{scope}:

```python
>>> from transformers import AutoTokenizer, {name}
>>> tokenizer = AutoTokenizer.from_pretrained("{model_name}")
>>> model = {name}.from_pretrained("{model_name}"{no_pooler})
>>> batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
>>> hidden = model(**batch).last_hidden_state{mean if is_plain_mean else ""}
```
"""


def model_index(title: str, data: ModelCardData) -> list[dict[str, Any]]:
    """Return the scores in the form of the metadata "model-index", which the hub shows on a model's page.

    title: the title of the card. data: its scores.
    """
    task = {"type": "sentence-similarity", "name": "Sentence Similarity"}
    results = [
        {
            "task": task,
            "dataset": {"type": data_set, "name": data_set, "split": split},
            "metrics": [{"type": metric, "name": f"{metric} x 100", "value": round(100 * score, 2)}],
        }
        for *names, score in data.scores
        for data_set, split, metric in [[sanitize(name, MAX_NAME_LENGTH) for name in names]]
    ]
    return [{"name": title, "results": results}]
