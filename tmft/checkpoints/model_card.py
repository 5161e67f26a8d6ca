"""Make the model card of a saved model, the text of its README.md."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmft.checkpoints.st_folder import is_supported, prompt_templates, tmft_settings, word_weights
from tmft.embedding.layer_mix import format_layer_mix
from tmft.errors import sanitize
from tmft.io.formatting import MAX_NAME_LENGTH, escape_markdown
from tmft.models.families import FAMILIES

if TYPE_CHECKING:
    from tmft.sentence_encoder import SentenceEncoder

PLACEHOLDER_PATH = "path/to/this/folder"
TASK = "sentence-similarity"  # its name on the hub
MAX_NOTE_LENGTH = 1000  # characters of a compatibility note; longer ones are shortened


def format_model_card(title: str, text: str, **metadata: Any) -> str:
    """Return a model card in Markdown: metadata, a title and a text.

    title: plain text, which is escaped. text: Markdown. metadata: see huggingface_hub.ModelCardData.
    """
    import huggingface_hub  # imported here: most commands write no card

    front_matter = huggingface_hub.ModelCardData(**metadata).to_yaml()
    return f"---\n{front_matter}\n---\n\n# {escape_markdown(title)}\n\n{text.strip()}\n"


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
    """

    results: str = ""
    base: str | None = None
    scores: tuple[tuple[str, str, str, float], ...] = ()
    teachers: tuple[str, ...] = ()
    kept_layers: tuple[int, ...] | None = None


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
    from huggingface_hub import EvalResult

    encoder, data = model.encoder, data or model.card_data or ModelCardData()
    num_layers, teachers = len(encoder.layers), " and ".join(map(display_name, data.teachers))
    kept_layers = encoder.kept_layers if data.kept_layers is None else data.kept_layers
    origin = display_name(data.base or model.source) or "an encoder"
    noun = "layer" if num_layers == 1 else "layers"
    title = f"Sentence embeddings from {num_layers} {noun} of {origin}"
    if kept_layers == ():
        title = f"Sentence embeddings: a student of {teachers}"
    elif kept_layers not in (None, tuple(range(num_layers))):
        numbers = ", ".join(map(str, kept_layers))
        title = f"Sentence embeddings from {noun} {numbers} (counted from 0) of {origin}"
    made = (
        f"A student of {teachers}, made by tmft"
        if teachers
        else "Saved by tmft, a library for truncated model fine-tuning (Rep, Dukić and Šnajder, Findings of "
        "EMNLP 2024)"
    )
    note = escape_markdown(describe_compatibility(model), MAX_NOTE_LENGTH)
    warning = f"**In other libraries:** {note}\n\n" if note else ""
    base = parse_hub_id(model.source if data.base is None else data.base)
    library = "tmft" if graph_file == "encode.py" else "sentence-transformers"
    scores = []
    for *texts, score in data.scores:
        data_set, split, metric = (sanitize(str(text), MAX_NAME_LENGTH) for text in texts)
        percentage = round(100 * score, 2)
        scores.append(EvalResult(TASK, data_set, data_set, metric, percentage, dataset_split=split))
    return format_model_card(
        title,
        f"""
Hidden state {format_layer_mix(model.layers or (num_layers,))}, pooling {model.pooling!r}, \
{model.dimensions} dimensions, at most {model.max_length} tokens.
A vocabulary of {encoder.config.vocab_size:,} tokens. {made}.

{warning}```python
>>> sentences = ["A man plays a guitar.", "Someone makes music."]
{usage_snippet(name, model.max_length, graph_file)}
```
{data.results}""",
        library_name=library,
        tags=list(dict.fromkeys([library, TASK, "feature-extraction", "tmft"])),
        pipeline_tag=TASK,
        base_model=base or None,
        model_name=title if scores else None,
        eval_results=scores or None,
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


def usage_snippet(name: str, max_length: int, graph_file: str) -> str:
    """Return a code snippet that encodes with sentence-transformers or what else opens the folder.

    name, graph_file: see sentence_model_card. max_length: the number of tokens to which sentences are
    truncated.
    """
    with_tmft = f"""
>>> from tmft import SentenceEncoder
>>> embeddings = SentenceEncoder.from_pretrained("{name}").encode(sentences)"""
    if not graph_file:
        return f"""\
>>> from sentence_transformers import SentenceTransformer
>>> embeddings = SentenceTransformer("{name}").encode(sentences){with_tmft}"""
    if graph_file == "encode.py":
        return f"""\
>>> import sys
>>> sys.path.append("{name}")  # its encode.py needs numpy and tokenizers alone
>>> from encode import Encoder
>>> embeddings = Encoder("{name}").encode(sentences){with_tmft}"""
    return f"""\
>>> from sentence_transformers import SentenceTransformer  # with optimum-onnx
>>> model = SentenceTransformer("{name}", backend="onnx")
>>> embeddings = model.encode(sentences)
>>> import onnxruntime, tokenizers  # or, from a folder, with these two alone
>>> tokenizer = tokenizers.Tokenizer.from_file("{name}/tokenizer.json")
>>> tokenizer.enable_truncation({max_length})
>>> tokenizer.enable_padding()
>>> batch = tokenizer.encode_batch(sentences)
>>> ids, mask = [text.ids for text in batch], [text.attention_mask for text in batch]
>>> session = onnxruntime.InferenceSession("{name}/{graph_file}")
>>> [embeddings] = session.run(["sentence_embedding"], {{"input_ids": ids, "attention_mask": mask}})"""
