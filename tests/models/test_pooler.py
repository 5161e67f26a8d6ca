"""The pooler: pooler_output of transformers, trained, saved, and refused where a checkpoint has none."""

import json

import numpy as np
import pytest
import torch
from conftest import SENTENCES, padded, tiny_config, vocabulary_folder
from test_bert import reference

import train
from tmft.checkpoints.load import load_encoder_with_report
from tmft.errors import InputError
from tmft.models.families import config_from_dict
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")


@pytest.fixture
def folder(tmp_path):
    """A BERT with the tokenizer of the tests."""
    reference(tiny_config(model_type="bert"), tmp_path / "whole")
    (vocabulary_folder() / "vocab.txt").rename(tmp_path / "whole/vocab.txt")
    return tmp_path / "whole"


@pytest.mark.parametrize("layer", [4, 2])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_pooler_gives_pooler_output_from_the_last_kept_layer(model_type, layer, tmp_path):
    model = reference(tiny_config(model_type=model_type, pad_token_id=0), tmp_path)
    model.encoder.layer = model.encoder.layer[:layer]
    encoder, report = load_encoder_with_report(tmp_path, layer, ["pooler"])
    sentences = [[2, 9, 7, 11, 3], [2, 3], [2, 5, 6, 3]]
    rows, (ids, mask) = pack(sentences), padded(sentences)
    with torch.inference_mode():
        ours = encoder.pooler_pooling(encoder(*rows.inputs), rows)
        theirs = model(input_ids=ids, attention_mask=mask).pooler_output
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert f"{layer} of 4 layers and pooler" in str(report) and "not loaded: pooler" not in str(report)


def test_a_saved_model_gives_the_same_embeddings_here_and_in_transformers(folder, tmp_path):
    import transformers

    model = SentenceEncoder.from_pretrained(folder, layer=2, pooling="pooler")
    model.save_pretrained(tmp_path / "kept")
    again = SentenceEncoder.from_pretrained(tmp_path / "kept")
    assert again.pooling == "pooler"
    np.testing.assert_array_equal(again.encode(SENTENCES), model.encode(SENTENCES))
    ids, mask = padded(model.tokenize(SENTENCES))
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "kept").eval()
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask).pooler_output
    np.testing.assert_allclose(model.encode(SENTENCES), expected.numpy(), atol=1e-5, rtol=0)
    card = (tmp_path / "kept/README.md").read_text()
    assert "sentence-transformers has no pooling 'pooler' and takes the mean" in card
    assert "add_pooling_layer" not in card


def test_another_pooling_drops_the_pooler(folder):
    model = SentenceEncoder.from_pretrained(folder, pooling="cls")
    assert not any("pooler" in name for name, _ in model.named_parameters())
    assert "not loaded: pooler (2)" in model.load_report


def test_it_is_trained_and_a_run_goes_on_from_it(folder, tiny_data, tmp_path):
    command = ["--ckpt", str(folder), "--data", str(tiny_data), "--output-dir", str(tmp_path / "runs")]
    command += "--pooling pooler --epochs 1 --lr 1e-2 --layer 2 --device cpu --run-name".split()
    train.main([*command, "one"])
    first = SentenceEncoder.from_pretrained(tmp_path / "runs/one-layer2-seed0")
    before = SentenceEncoder.from_pretrained(folder, pooling="pooler").encoder.pooler_pooling.dense.weight
    assert first.pooling == "pooler" and not first.encoder.pooler_pooling.dense.weight.equal(before)
    train.main([*command, "two", "--init-from", str(tmp_path / "runs/one-layer2-seed0")])
    result = json.loads((tmp_path / "runs/two-layer2-seed0/result.json").read_text())
    assert result["settings"]["pooling"] == "pooler" and len(result["provenance"]) == 1


def test_a_checkpoint_without_a_pooler_is_refused(folder, tmp_path):
    SentenceEncoder.from_pretrained(folder).save_pretrained(tmp_path / "kept")
    with pytest.raises(InputError, match="missing tensor pooler.*, or it is a checkpoint without pooler"):
        SentenceEncoder.from_pretrained(tmp_path / "kept", pooling="pooler")
    with pytest.raises(InputError, match="pooling pooler: model_type electra has no pooler, choose another"):
        config_from_dict(tiny_config(), ["pooler"])
