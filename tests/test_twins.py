"""The small checkpoints in data/twins: they are what their cards say; commands without arguments use them."""

import json

import pytest
import torch
import transformers
from conftest import ROOT, assert_equal_hidden_states, open_in_transformers

import cka
from tmft import SentenceEncoder
from tmft.checkpoint import load_encoder

TWINS = ROOT / "data/twins"
CLASSES = {
    "mlm": "BertForMaskedLM",
    "discriminator": "ElectraForPreTraining",
    "generator": "ElectraForMaskedLM",
}
SENTENCES = ["A man plays the guitar.", "Two dogs run in the park, not a cat!", "Música?"]


@pytest.mark.parametrize("name", CLASSES)
def test_a_twin_opens_in_transformers_with_its_head_and_equal_hidden_states(name):
    whole = open_in_transformers(CLASSES[name], TWINS / name)
    model = SentenceEncoder.load(TWINS / name)
    theirs = transformers.AutoTokenizer.from_pretrained(TWINS / name)
    ids = model.tokenize(SENTENCES)
    assert theirs(SENTENCES)["input_ids"] == ids
    assert_equal_hidden_states(load_encoder(TWINS / name), whole.base_model, ids)


def test_the_twins_differ_in_nothing_but_what_they_learnt():
    """Shape, vocabulary and, by their cards, text, steps and seed."""
    configs = [json.loads((TWINS / name / "config.json").read_text()) for name in ("mlm", "discriminator")]
    shapes = [
        {key: config.get(key) for key in configs[0] if key not in ("architectures", "model_type")}
        for config in configs
    ]
    assert shapes[0] == shapes[1]
    assert len({(TWINS / name / "tokenizer.json").read_text() for name in CLASSES}) == 1
    for name in CLASSES:
        assert (TWINS / name / "model.safetensors").stat().st_size < 8e6
        assert "tokens seen" in (TWINS / name / "README.md").read_text()


def test_the_discriminator_tells_a_replaced_word():
    """Of two sentences that differ in one word it doubts the absurd one more."""
    whole = open_in_transformers("ElectraForPreTraining", TWINS / "discriminator")
    model = SentenceEncoder.load(TWINS / "discriminator")
    doubts = []
    for word in ("milk", "seventeen"):
        ids = model.tokenize([f"The cat drinks {word} in the kitchen."])[0]
        with torch.inference_mode():
            doubts.append(whole(torch.tensor([ids])).logits[0, 4].item())
    assert doubts[0] < doubts[1]


def test_cka_without_arguments_compares_the_twins(tmp_path, capsys):
    cka.main(["--json", str(tmp_path / "cka.json")])
    assert "A = discriminator and B = mlm" in capsys.readouterr().out
    (pair,) = json.loads((tmp_path / "cka.json").read_text())["pairs"]
    assert len(pair["by_layer"]) == 9 and all(0 < value < 1 for value in pair["by_layer"])
