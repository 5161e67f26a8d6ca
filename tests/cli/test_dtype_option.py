"""--dtype of the commands that load a model to encode with it."""

import numpy as np
import pytest
import torch
from conftest import assert_same_embeddings, stored_weights, tiny_model

from tmft.cli import encode_command as encode
from tmft.cli import export_command as export
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

LINES = ["a man plays guitar", "the cat eats", "two dogs in the park"]


@pytest.fixture
def folder(tmp_path) -> str:
    """A saved model whose weights are stored in bfloat16."""
    tiny_model().save_pretrained(tmp_path / "stored", dtype=torch.bfloat16)
    return str(tmp_path / "stored")


@pytest.fixture
def text(tmp_path) -> str:
    (tmp_path / "x.txt").write_text("\n".join(LINES) + "\n")
    return str(tmp_path / "x.txt")


def encoded(folder, text, tmp_path, *options) -> np.ndarray:
    out = tmp_path / f"{len(list(tmp_path.glob('*.npy')))}.npy"
    encode.main([folder, text, "--out", str(out), *options])
    return np.load(out)


def test_float32_is_the_default(folder, text, tmp_path):
    exact = encoded(folder, text, tmp_path)
    rounded = encoded(folder, text, tmp_path, "--dtype", "bfloat16")
    assert not np.array_equal(exact, rounded)
    assert_same_embeddings(rounded, exact, 0.05)
    np.testing.assert_array_equal(encoded(folder, text, tmp_path, "--dtype", "auto"), rounded)
    np.testing.assert_array_equal(encoded(folder, text, tmp_path, "--dtype", "float32"), exact)
    model = SentenceEncoder.from_pretrained(folder, dtype="float16")
    np.testing.assert_array_equal(encoded(folder, text, tmp_path, "--dtype", "float16"), model.encode(LINES))


def test_export_keeps_the_stored_dtype_on_request(folder, tmp_path, capsys):
    for dtype, stored in (("auto", torch.bfloat16), ("float32", torch.float32)):
        export.main([folder, str(tmp_path / dtype), "--dtype", dtype])
        assert {tensor.dtype for tensor in stored_weights(tmp_path / dtype).values()} == {stored}
    assert "as sentence-transformers, bfloat16" in capsys.readouterr().out
    assert (tmp_path / "auto/model.safetensors").read_bytes() == (
        tmp_path / "stored/model.safetensors"
    ).read_bytes()
    with pytest.raises(InputError, match="dtype bfloat16: format onnx supports float32, float16"):
        export.main([folder, str(tmp_path / "x"), "--dtype", "auto", "--format", "onnx"])
