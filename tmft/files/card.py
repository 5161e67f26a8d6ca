"""The model card of a saved model, README.md: plain values in, Markdown out."""

import re
from pathlib import Path


def model_card(title: str, text: str, **front_matter) -> str:
    """front_matter: keys that the hub reads, as strings or lists of them; empty ones are left out."""
    lines = []
    for key, value in front_matter.items():
        if value:
            lines.append(f"{key}: {value}" if isinstance(value, str) else f"{key}: [{', '.join(value)}]")
    return "\n".join(["---", *lines, "---", "", f"# {title}", "", text.strip(), ""])


def hub_id(source: str) -> str:
    """The hub id of a checkpoint without its revision; '' if it is a folder."""
    name = source.partition("@")[0]
    return "" if Path(source).exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) else name


def sentence_card(
    source: str,
    layers: int,
    state: str,
    dimensions: int,
    pooling: str,
    max_length: int,
    differs: str = "",
    results: str = "",
) -> str:
    """Of a sentence encoder. source: hub id or folder that it was made of; state: name of the hidden state or
    mix; differs: what other libraries do otherwise than tmft; results: Markdown that says how it was
    trained and what it scores."""
    kept = {0: "the embeddings", 1: "the first layer"}.get(layers, f"the first {layers} layers")
    warning = f"**Elsewhere:** {differs}\n\n" if differs else ""
    return model_card(
        f"Sentence embeddings from {kept} of {hub_id(source) or Path(source).name or 'an encoder'}",
        f"""
Hidden state {state}, pooling {pooling!r}, {dimensions} dimensions, at most {max_length} tokens.
Made by truncated model fine-tuning (Rep, Dukić and Šnajder, Findings of EMNLP 2024).

{warning}```python
>>> from sentence_transformers import SentenceTransformer  # or: from tmft import SentenceEncoder
>>> model = SentenceTransformer("path/to/this/folder")     #     SentenceEncoder.load("path/to/this/folder")
>>> embeddings = model.encode(["A man plays a guitar.", "Someone makes music."])
```
{results}""",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "tmft"],
        pipeline_tag="sentence-similarity",
        library_name="sentence-transformers",
        base_model=hub_id(source),
    )
