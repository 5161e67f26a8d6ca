"""`tmft encode TEXT`: print the embedding of one text by data/tiny, with numpy and tokenizers alone.

It is that of `SentenceEncoder.from_pretrained("tiny")`, which needs torch, and a second to import it.
"""

import os
import re
import sys

from tmft.errors import InputError, short_repr
from tmft.export.numpy_encoder import Encoder
from tmft.io.paths import PACKAGE_DATA


def print_embedding(text: str) -> None:
    """Print the embedding of a text as a list in JSON, on one line."""
    if not text.strip():
        raise InputError("the text is empty: give a sentence")
    if os.path.exists(text):
        raise InputError(
            f"{short_repr(text)} is a file or folder, and no text: give MODEL FILE --out FILE.npy; see --help"
        )
    is_model = os.path.isfile(os.path.join(PACKAGE_DATA, text, "config.json"))
    # such as a.txt, owner/name or a-model-v2
    if is_model or re.fullmatch(r"\S*\w[./\\]\w\S*|\w+(-[\w.]+){2,}", text):
        kind = "the name of a model" if is_model else "the name of a file or model, but no such file is here"
        print(
            f"note: this is the embedding of the text {short_repr(text)}, which looks like {kind}; "
            "for the lines of a file: tmft encode MODEL FILE --out FILE.npy",
            file=sys.stderr,
        )
    [embedding] = Encoder(PACKAGE_DATA / "tiny").encode([text])
    print(f"[{', '.join(map(str, embedding))}]")
