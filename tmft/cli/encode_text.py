"""`tmft encode TEXT`: print the embedding of one text by data/tiny, with numpy and tokenizers alone.

It is that of `SentenceEncoder.from_pretrained("tiny")`, which needs torch, and a second to import it.
"""

import os

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
    [embedding] = Encoder(PACKAGE_DATA / "tiny").encode([text])
    print(f"[{', '.join(map(str, embedding))}]")
