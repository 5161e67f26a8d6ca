"""The model card of a saved model, README.md: plain values in, Markdown out."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tmft.checkpoints.known_checkpoints import KNOWN
from tmft.errors import sanitize

HERE = "path/to/this/folder"
SHOWN = 200  # letters of a name of a stranger


def model_card(title: str, text: str, **front_matter) -> str:
    """front_matter: what the hub reads, strings, lists of them, or anything else that JSON can say; what is
    empty is left out."""
    given = {key: value for key, value in front_matter.items() if value}
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in given.items()
    ]  # JSON is YAML
    return "\n".join(["---", *lines, "---", "", f"# {plain(title)}", "", text.strip(), ""])


def plain(text: str, most: int = SHOWN) -> str:
    """The words of a stranger as Markdown that shows them and does no more: on one line, none too long, no
    link, picture or HTML, no end of a cell."""
    return re.sub(r"([\\`<>|&]|\](?=[(\[:]))", r"\\\1", sanitize(text, most))


def hub_id(source: str) -> str:
    """The hub id of a checkpoint without its revision; '' if it is a folder."""
    name = source.partition("@")[0]
    named = re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", name, re.ASCII)
    return name if named and not os.path.exists(source) else ""


@dataclass(frozen=True)
class Told:
    """What a run tells of its model. results: Markdown, how it was trained and what it scores; base: the
    checkpoint that training began with, None: the one that was loaded; scores: data, split, metric, score."""

    results: str = ""
    base: str | None = None
    scores: tuple[tuple[str, str, str, float], ...] = ()


@dataclass(frozen=True)
class Opens:
    """How other libraries open the folder. class_name: of the encoder in transformers; mean: whether an
    embedding is the mean of its last hidden states and no more; pooler: whether that class makes weights
    that are not used; differs: what others do otherwise than tmft; onnx: whether it is a graph."""

    class_name: str
    mean: bool
    pooler: bool
    differs: str = ""
    onnx: bool = False


def sentence_card(
    source: str,
    layers: int,
    state: str,
    dimensions: int,
    pooling: str,
    max_length: int,
    opens: Opens,
    told: Told,
    name: str = HERE,
) -> str:
    """Of a sentence encoder. source: hub id or folder that it was made of; state: name of the hidden state or
    mix; name: what it is opened by, a folder or a hub id."""
    base = hub_id(source if told.base is None else told.base)
    kept = {0: "the embeddings", 1: "the first layer"}.get(layers, f"the first {layers} layers")
    whose = base or sanitize(Path(source).name, SHOWN) or "an encoder"
    title = f"Sentence embeddings from {kept} of {whose}"
    language, licence = KNOWN.get(base, ("", ""))
    warning = f"**Elsewhere:** {plain(opens.differs, 1000)}\n\n" if opens.differs else ""
    return model_card(
        title,
        f"""
Hidden state {state}, pooling {pooling!r}, {dimensions} dimensions, at most {max_length} tokens.
Made by truncated model fine-tuning (Rep, Dukić and Šnajder, Findings of EMNLP 2024).

{warning}```python
>>> sentences = ["A man plays a guitar.", "Someone makes music."]
{in_onnx_runtime(name, max_length) if opens.onnx else as_weights(name)}
```
{in_transformers(opens, name)}{told.results}""",
        language=language,
        license=licence,
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "tmft"],
        pipeline_tag="sentence-similarity",
        library_name="sentence-transformers",
        base_model=base,
        **{"model-index": index(title, told) if told.scores else None},
    )


def as_weights(name: str) -> str:
    return f"""\
>>> from sentence_transformers import SentenceTransformer
>>> embeddings = SentenceTransformer("{name}").encode(sentences)
>>> from tmft import SentenceEncoder
>>> embeddings = SentenceEncoder.from_pretrained("{name}").encode(sentences)"""


def in_onnx_runtime(name: str, max_length: int) -> str:
    return f"""\
>>> from sentence_transformers import SentenceTransformer  # with optimum-onnx
>>> embeddings = SentenceTransformer("{name}", backend="onnx").encode(sentences)
>>> import onnxruntime, tokenizers  # or, from a folder, with these two alone
>>> tokenizer = tokenizers.Tokenizer.from_file("{name}/tokenizer.json")
>>> tokenizer.enable_truncation({max_length})
>>> tokenizer.enable_padding()
>>> batch = tokenizer.encode_batch(sentences)
>>> ids, mask = [text.ids for text in batch], [text.attention_mask for text in batch]
>>> session = onnxruntime.InferenceSession("{name}/onnx/model.onnx")
>>> [embeddings] = session.run(["sentence_embedding"], {{"input_ids": ids, "attention_mask": mask}})"""


def in_transformers(opens: Opens, name: str) -> str:
    """How transformers opens it, '' if it cannot."""
    if not opens.class_name or opens.onnx:
        return ""
    quiet = ", add_pooling_layer=False" if opens.pooler else ""  # else it says that weights are missing
    pooled = """
>>> mask = batch["attention_mask"][..., None]
>>> embeddings = (hidden * mask).sum(1) / mask.sum(1)"""
    return f"""
In transformers{"" if opens.mean else " up to the hidden states, which are then to be pooled as above"}:

```python
>>> from transformers import AutoTokenizer, {opens.class_name}
>>> tokenizer = AutoTokenizer.from_pretrained("{name}")
>>> model = {opens.class_name}.from_pretrained("{name}"{quiet})
>>> batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
>>> hidden = model(**batch).last_hidden_state{pooled if opens.mean else ""}
```
"""


def index(title: str, told: Told) -> list[dict]:
    """The scores as the hub's pages show them."""
    kind = {"type": "sentence-similarity", "name": "Sentence Similarity"}
    results = [
        {
            "task": kind,
            "dataset": {"type": data, "name": data, "split": split},
            "metrics": [{"type": metric, "name": f"{metric} x 100", "value": round(100 * score, 2)}],
        }
        for *names, score in told.scores
        for data, split, metric in [[sanitize(name, SHOWN) for name in names]]
    ]
    return [{"name": title, "results": results}]
