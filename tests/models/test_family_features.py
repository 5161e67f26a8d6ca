"""What every model can do, tried with each family and the tokenizer of its checkpoints.

The models are tiny random ones of the shapes in random_configs.py, with the tokenizers of tokenizer_forms.py.
"""

import json
import random
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import fit_with_options, open_in_transformers, training_task
from random_configs import RANDOM_CONFIGS
from tokenizer_forms import FORMS

import train
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import Examples
from tmft.embedding.token_weights import special_ids
from tmft.errors import InputError
from tmft.loss import CosineMSE
from tmft.models.families import config_from_dict, random_encoder
from tmft.packing import pack
from tmft.runs.run_config import FineTuningRecipe
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.vocabulary_pruning import prune_vocabulary
from tmft.tasks import TASKS
from tmft.tokenizer import Tokenizer

FORM_OF_FAMILY = {
    "bert": "bert vocab.txt",
    "deberta-v2": "deberta spm.model",
    "t5": "t5 spiece.model",
    "roberta": "roberta vocab.json",
    "xlm-roberta": "xlm-roberta tokenizer.json",
    "camembert": "camembert tokenizer.json",
    "distilbert": "bert tokenizer.json",
    "mpnet": "mpnet vocab.txt",
    "modernbert": "modernbert tokenizer.json",
    "nomic_bert": "bert vocab.txt",
    "gte": "xlm-roberta tokenizer.json",
}
NAMES = list(FORM_OF_FAMILY)
BYTE_PAIRS = ("roberta", "modernbert")  # tokenizers whose vocabulary cannot be pruned
TEXTS = [
    "the baker mends a wooden boat .",
    "an old sailor carries three umbrellas !",
    "my neighbour paints the garden gate ?",
    "the teacher is looking for 12 candles , 3.5 metres long",
    "eine alte Lehrerin sucht zwei Gläser .",
    "el panadero arregla una guitarra vieja .",
]
SHAPE = {"num_hidden_layers": 3, "n_layers": 3, "num_layers": 3, "max_position_embeddings": 130}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, Tokenizer]:
    """The tokenizer of each family; the files are made when they are asked for."""

    class Tokenizers(dict):
        def __missing__(self, model_type: str) -> Tokenizer:
            folder = tmp_path_factory.mktemp(model_type)
            FORMS[FORM_OF_FAMILY[model_type]](folder)
            self[model_type] = load_tokenizer(folder)
            return self[model_type]

    return Tokenizers()


@pytest.fixture
def make(tokenizers):
    def make(model_type: str) -> SentenceEncoder:
        tokenizer = deepcopy(tokenizers[model_type])
        content = RANDOM_CONFIGS[model_type](random.Random(1)) | SHAPE | {"pad_token_id": tokenizer.pad_id}
        content |= {"vocab_size": len(tokenizer.vocabulary)}
        torch.manual_seed(0)
        encoder = random_encoder(config_from_dict(content))
        for name, weight in encoder.named_parameters():
            torch.nn.init.normal_(weight, mean=float(name.endswith("norm.weight")), std=0.2)
        return SentenceEncoder(encoder, tokenizer).eval()

    return make


# ------------------------------------------------------------------------------- training


@pytest.mark.parametrize("model_type", NAMES)
def test_the_output_of_frozen_layers_does_not_change(model_type, make):
    model = make(model_type)
    bottom = [weight for module in model.encoder.bottom_modules(1) for weight in module.parameters()]
    before = [weight.detach().clone() for weight in bottom]
    norm = deepcopy(getattr(model.encoder, "norm", None))  # of all hidden states; it is trained
    state = first_state(model)
    examples = Examples((TEXTS[:3], TEXTS[3:]), [4.0, 1.0, 2.0])
    recipe = FineTuningRecipe(epochs=1, batch_size=3, lr=1e-2, precision="fp32", freeze_layers=1)
    list(fit_with_options(model, training_task(TASKS["stsb"], CosineMSE(), examples, examples), recipe))
    assert all(torch.equal(weight, old) for weight, old in zip(bottom, before, strict=True))
    if norm is not None:
        model.encoder.norm = norm
    assert torch.equal(first_state(model), state)


def first_state(model: SentenceEncoder) -> torch.Tensor:
    with torch.no_grad():
        return model.eval().encoder.hidden_states(*pack(model.tokenize(TEXTS)).inputs)[1]


# ------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("model_type", NAMES)
def test_content_words_are_the_first_tokens_of_words(model_type, make):
    model, text = make(model_type), "so the unusually wooden umbrellas , guitars and candles !"
    model.set_token_weights("content-words")
    weights = model.token_weights.table
    encoding = model.tokenizer.backend.encode(text)
    assert not weights[[id for id in encoding.ids if id in special_ids(model.tokenizer)]].any()
    first, later = [], []
    for index in range(2, len(encoding.ids) - 1):
        if (
            start := encoding.offsets[index][0]
        ) > 0:  # a byte-level BPE spells the first word as a continuation
            token = text[slice(*encoding.offsets[index])]
            begins = token.startswith(" ") or text[start - 1] == " "
            is_word = begins and "▁" not in encoding.tokens[index - 1 : index + 1]  # a piece of its own
            is_word = is_word and token.strip(" ,!") not in ("", "the", "and")
            (first if is_word else later).append(weights[encoding.ids[index]].item())
    assert set(first) == {1.0} and set(later) <= {0.0} and len(later) > 2


@pytest.mark.parametrize("model_type", [name for name in NAMES if name not in BYTE_PAIRS])
def test_a_pruned_vocabulary_gives_the_same_embeddings(model_type, make, tmp_path):
    model = make(model_type)
    pruned = prune_vocabulary(model, TEXTS[:4])
    assert len(pruned.tokenizer.vocabulary) < len(model.tokenizer.vocabulary) / 2
    np.testing.assert_array_equal(pruned.encode(TEXTS[:4]), model.encode(TEXTS[:4]))
    pruned.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again.encode(TEXTS[:4]), model.encode(TEXTS[:4]))
    assert again.encoder.config.position_offset == model.encoder.config.position_offset


# ------------------------------------------------------------------------------- commands


@pytest.fixture
def text(tmp_path) -> Path:
    lines = [f"{a} {b}" for a in TEXTS for b in TEXTS]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.mark.slow
def test_a_roberta_from_scratch_counts_positions_from_the_padding_token_of_its_new_vocabulary(text, tmp_path):
    """A new WordPiece vocabulary has [PAD] at 0, where RoBERTa's own has it at 1."""
    content = RANDOM_CONFIGS["roberta"](random.Random(0)) | {"pad_token_id": 1, "max_position_embeddings": 42}
    (tmp_path / "config.json").write_text(json.dumps(content))
    words = ["--from-scratch", tmp_path, "--vocab-size", 300, "--task", "mlm", "--text", text]
    words += ["--output-dir", tmp_path / "runs", "--run-name", "r", "--max-length", 24, "--precision", "fp32"]
    train.main([str(word) for word in [*words, "--steps", 2, "--batch-size", 4]])
    model = open_in_transformers("RobertaForMaskedLM", tmp_path / "runs/r-seed0")
    ours = SentenceEncoder.from_pretrained(tmp_path / "runs/r-seed0")
    assert (ours.encoder.config.pad_token_id, ours.encoder.config.max_tokens) == (0, 41)
    ids = torch.tensor([[2, 1, 1, 9, 1, 3]])  # with [UNK], which is 1
    with torch.no_grad():
        states = model.base_model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(ours.encoder(ids, torch.ones_like(ids)), states, rtol=0, atol=1e-5)


def test_an_mpnet_from_scratch_needs_its_own_vocabulary(text, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(RANDOM_CONFIGS["mpnet"](random.Random(0))))
    words = ["--from-scratch", tmp_path, "--vocab-size", 300, "--task", "mlm", "--text", text]
    words += ["--output-dir", tmp_path / "runs", "--max-length", 24]
    with pytest.raises(
        InputError, match="positions of this family start after a padding token of id 1, which"
    ):
        train.main([str(word) for word in words])
