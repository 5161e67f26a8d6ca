"""Heads and objectives: their losses equal those of transformers, which also opens the saved files."""

import json
import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from conftest import VOCABULARY, load_encoder, open_in_transformers, tiny_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_configs import RANDOM_CONFIGS
from safetensors.torch import load_file, save_file

from tmft.checkpoints.model_folder import ModelFolder
from tmft.encoder import EncoderConfig
from tmft.errors import InputError
from tmft.models.deberta_family import DEBERTA_V3_MLM
from tmft.models.families import FAMILIES, config_from_dict, random_encoder
from tmft.packing import pack
from tmft.pretraining.masking import LabeledBatch
from tmft.pretraining.pretraining_loop import PretrainingRecipe
from tmft.pretraining.token_heads import (
    MaskedLM,
    ReplacedTokenDetection,
    generator_config,
    means_from_sums,
    prediction_sums,
    read_mlm_head,
    sample_tokens,
)
from tmft.runs.pretrain import from_checkpoint
from tmft.runs.run_config import PretrainingConfig

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_DROPOUT |= {"dropout": 0.0, "attention_dropout": 0.0}  # their names in DistilBERT
SENTENCES = [[2, 9, 7, 12, 20, 3], [2, 8, 30, 3], [2, 11, 3], [2, 17, 18, 19, 25, 26, 3]]
SHAPES = {
    "bert": {"model_type": "bert", "hidden_act": "gelu_new"},
    "electra": {},
    "electra without projection": {"embedding_size": 24, "hidden_act": "relu"},
    "deberta-v2": {
        "model_type": "deberta-v2",
        "embedding_size": 24,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "position_biased_input": False,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 8,
        "type_vocab_size": 0,
    },
    "roberta": {"model_type": "roberta", "hidden_act": "relu", "layer_norm_eps": 1e-5},
    "distilbert": {"model_type": "distilbert", "activation": "relu", "hidden_dim": 40},
}

MLM_FAMILIES = [name for name in RANDOM_CONFIGS if FAMILIES[name].mlm_head_layouts]
VERSION_3 = FAMILIES["deberta-v2"].mlm_head_layouts.index(DEBERTA_V3_MLM)


def with_random_weights(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(1)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def config_of(shape: str) -> EncoderConfig:
    return config_from_dict(tiny_config(**SHAPES[shape], **NO_DROPOUT))


def make_batch(positions: list[tuple[int, int]]) -> tuple[LabeledBatch, *tuple[torch.Tensor, ...]]:
    """Mask tokens of SENTENCES: a packed batch; and ids, mask and labels of a padded batch.

    positions: (sentence, token) of each masked token.
    """
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in SENTENCES], batch_first=True)
    mask, labels = ids != 0, torch.full_like(ids, -100)
    masked = [list(sentence) for sentence in SENTENCES]
    for sentence, token in positions:
        labels[sentence, token] = ids[sentence, token]
        ids[sentence, token] = masked[sentence][token] = 4
    packed = pack(masked, packed_length=12)
    label_positions = []
    for sentence, token in positions:
        first = (packed.attention_mask.flatten() == sentence + 1).nonzero()[0].item()
        label_positions.append(first + token)
    originals = torch.tensor([SENTENCES[s][t] for s, t in positions])
    return LabeledBatch(packed, torch.tensor(label_positions), originals), ids, mask, labels


@pytest.mark.parametrize("model_type", MLM_FAMILIES)
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_loss_and_accuracy_of_packed_sentences_are_those_of_transformers_with_the_saved_head(model_type, rng):
    model = with_random_weights(MaskedLM(random_encoder(config_from_dict(RANDOM_CONFIGS[model_type](rng)))))
    places = [(s, t) for s, sentence in enumerate(SENTENCES) for t in range(1, len(sentence) - 1)]
    batch, ids, mask, labels = make_batch(sorted(rng.sample(places, rng.randrange(1, len(places)))))
    with TemporaryDirectory() as folder:
        model.save(Path(folder))
        (name,) = json.loads(Path(folder, "config.json").read_text())["architectures"]
        theirs = open_in_transformers(name, folder)
        tables = [weight.shape for weight in load_file(Path(folder, "model.safetensors")).values()]
        head, layout = read_mlm_head(ModelFolder.open(folder), model.encoder.config)
        again = load_encoder(Path(folder))
    assert tables.count(model.encoder.embeddings.word.weight.shape) == 1  # the embeddings are tied
    with torch.inference_mode():
        ours = means_from_sums(model(batch))
        output = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels)
    assert ours["mlm_loss"].item() == pytest.approx(output.loss.item(), rel=1e-4)
    right = (output.logits.argmax(-1) == labels)[labels != -100].float().mean().item()
    assert ours["mlm_accuracy"].item() == pytest.approx(right)
    assert layout == model.head_layout == 0
    for name, weight in model.head.state_dict().items():
        assert torch.equal(weight, head.state_dict()[name]), name
    for a, b in zip(again.parameters(), model.encoder.parameters(), strict=True):
        assert torch.equal(a, b)


def test_labels_are_padded_to_few_sizes_and_the_padding_has_no_loss_and_no_gradient():
    model = with_random_weights(MaskedLM(random_encoder(config_of("bert"))))
    batch, *_ = make_batch([(0, 2), (0, 4), (1, 1), (3, 5)])
    sizes = []
    model.head.register_forward_hook(lambda head, inputs, logits: sizes.append(len(logits)))
    gradients = []
    for sums in (model(batch), prediction_sums(model.logits(batch), batch.labels)):
        model.zero_grad()
        sums["mlm"].backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
        assert sums["masked"] == 4
    assert sizes == [32, 4]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_deberta_keeps_the_layout_of_its_head(tmp_path):
    """The files of version 3 call it lm_predictions; transformers reads that if legacy is false."""
    encoder = random_encoder(config_of("deberta-v2"))
    model = with_random_weights(MaskedLM(encoder, head_layout=VERSION_3))
    model.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["legacy"] is False
    theirs = open_in_transformers("DebertaV2ForMaskedLM", tmp_path)
    batch, ids, mask, labels = make_batch([(0, 2), (3, 5)])
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels).loss.item()
        assert means_from_sums(model(batch))["mlm_loss"].item() == pytest.approx(expected, abs=1e-5)
    assert read_mlm_head(ModelFolder.open(tmp_path), encoder.config)[1] == VERSION_3


@pytest.mark.slow
def test_a_head_saved_by_transformers_is_read_also_with_legacy_names(tmp_path):
    import transformers

    config = transformers.BertConfig(**tiny_config(**SHAPES["bert"]))
    theirs = with_random_weights(transformers.BertForMaskedLM(config))
    theirs.save_pretrained(tmp_path)
    path, old = tmp_path / "model.safetensors", {}
    for name, weight in load_file(path).items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name.replace("LayerNorm.bias", "LayerNorm.beta")] = weight
    save_file(old, path)
    head, _ = read_mlm_head(ModelFolder.open(tmp_path), config_of("bert"))
    transform = theirs.cls.predictions.transform
    assert torch.equal(head.norm.weight, transform.LayerNorm.weight)
    assert torch.equal(head.dense.weight, transform.dense.weight)
    assert torch.equal(head.bias, theirs.cls.predictions.bias)


def test_no_head_is_none_and_an_incomplete_head_or_a_wrong_shape_is_an_error(tmp_path):
    model = MaskedLM(random_encoder(config_of("electra")))
    model.save(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)

    save_file({k: w for k, w in weights.items() if "generator" not in k}, path)
    assert read_mlm_head(ModelFolder.open(tmp_path), model.encoder.config) is None
    save_file({k: w for k, w in weights.items() if k != "generator_lm_head.bias"}, path)
    with pytest.raises(InputError, match="missing tensor generator_lm_head.bias .*: the head is incomplete"):
        read_mlm_head(ModelFolder.open(tmp_path), model.encoder.config)
    save_file(weights | {"generator_lm_head.bias": torch.zeros(3)}, path)
    with pytest.raises(InputError, match=r"generator_lm_head.bias has shape \(3,\) .*: config.json asks for"):
        read_mlm_head(ModelFolder.open(tmp_path), model.encoder.config)


def test_a_new_discriminator_predicts_the_rate_of_replaced_tokens():
    """Otherwise it would have to learn the rate first, and change all layers with it."""
    torch.manual_seed(1)
    config = config_from_dict(tiny_config(initializer_range=0.1))
    head = ReplacedTokenDetection(config, generator_size=0.5).head
    with torch.inference_mode():
        rate = head(torch.randn(1000, 24)).sigmoid().mean().item()
    assert rate == pytest.approx(0.13, abs=0.05)


@pytest.mark.slow
def test_both_losses_of_rtd_equal_those_of_transformers_for_the_same_sampled_tokens(tmp_path, monkeypatch):
    """The sampled tokens are fixed here; one of them is the true one, which counts as original."""
    model = with_random_weights(ReplacedTokenDetection(config_of("electra"), generator_size=0.5))
    batch, ids, mask, labels = make_batch([(0, 2), (0, 4), (1, 1), (3, 5)])
    sampled = torch.tensor([40, SENTENCES[0][4], 41, 42])
    monkeypatch.setattr("tmft.pretraining.token_heads.sample_tokens", lambda logits: sampled)
    model.save(tmp_path)
    discriminator = open_in_transformers("ElectraForPreTraining", tmp_path / "discriminator")
    generator = open_in_transformers("ElectraForMaskedLM", tmp_path / "generator")

    corrupted = ids.clone()
    for (sentence, token), token_id in zip([(0, 2), (0, 4), (1, 1), (3, 5)], sampled, strict=True):
        corrupted[sentence, token] = token_id
    original = torch.where(labels == -100, ids, labels)
    with torch.inference_mode():
        sums = model(batch)
        means = {name: float(value) for name, value in means_from_sums(sums).items()}
        mlm = generator(input_ids=ids, attention_mask=mask.long(), labels=labels).loss.item()
        replaced = (corrupted != original).long()
        rtd = discriminator(input_ids=corrupted, attention_mask=mask.long(), labels=replaced)
    assert means["mlm_loss"] == pytest.approx(mlm, abs=1e-5)
    assert means["rtd_loss"] == pytest.approx(rtd.loss.item(), abs=1e-5)
    tokens = mask.sum().item()
    assert means["rtd_baseline"] == pytest.approx((tokens - 3) / tokens)
    right = ((rtd.logits > 0) == replaced.bool())[mask].float().mean().item()
    assert means["rtd_accuracy"] == pytest.approx(right)
    total = model.loss(sums, num_labels=4, num_tokens=tokens).item()
    assert total == pytest.approx(mlm + 50 * rtd.loss.item(), rel=1e-5)


def test_the_generator_is_narrower_shares_the_embeddings_and_gets_no_gradient_of_the_rtd_loss():
    model = ReplacedTokenDetection(config_of("electra"), generator_size=0.5)
    generator = model.generator.encoder
    assert generator.config == generator_config(model.encoder.config, 0.5)
    assert (generator.config.hidden_size, generator.config.num_attention_heads) == (12, 2)
    for name in ("word", "position", "token_type", "norm"):
        assert getattr(generator.embeddings, name) is getattr(model.encoder.embeddings, name)
    batch, *_ = make_batch([(0, 2), (1, 1)])
    model(batch)["rtd"].backward()
    layer_weights = [weight for layer in generator.layers for weight in layer.parameters()]
    assert all(weight.grad is None for weight in [*layer_weights, *model.generator.head.parameters()])
    assert model.encoder.embeddings.word.weight.grad is not None


def test_tokens_are_sampled_with_the_probabilities_of_the_softmax():
    torch.manual_seed(0)
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    sampled = sample_tokens(probabilities.log().expand(20_000, -1))
    frequencies = torch.bincount(sampled, minlength=5) / len(sampled)
    torch.testing.assert_close(frequencies, probabilities, rtol=0, atol=4 * math.sqrt(0.25 / len(sampled)))


@pytest.mark.parametrize("shape", ["bert", "deberta-v2"])
def test_rtd_needs_an_electra(shape):
    message = f"a {shape} has no head for replaced-token detection: name the config.json of an electra"
    with pytest.raises(InputError, match=message):
        ReplacedTokenDetection(config_of(shape), 0.25)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if not family.mlm_head_layouts])
def test_a_family_without_an_mlm_head_is_refused_before_any_work(family):
    draw = RANDOM_CONFIGS.get(family, lambda rng: tiny_config(model_type=family))
    encoder = random_encoder(config_from_dict(draw(random.Random(0))))
    message = f"a {family} has no head for masked language modeling: choose one of bert, electra, "
    with pytest.raises(InputError, match=message):
        MaskedLM(encoder)


# --------------------------------------------------------------------- continued training of a discriminator


def continued(folder: Path):
    """What continued training of a discriminator begins with, from the weights in a folder."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    recipe, text = PretrainingRecipe(max_length=16), (folder / "x.txt",)
    config = PretrainingConfig(task="rtd", ckpt=str(folder), text=text, recipe=recipe)
    return from_checkpoint(config, ModelFolder.open(config.ckpt))


@pytest.mark.parametrize("shape", ["bert", "electra", "electra without projection", "roberta", "distilbert"])
def test_a_discriminator_may_start_from_what_can_be_stored_as_an_electra(shape, tmp_path):
    """Weights trained with MLM are used as an ELECTRA: hidden states are the same, the head is new."""
    source = with_random_weights(MaskedLM(random_encoder(config_of(shape))))
    source.save(tmp_path)
    model, _, start = continued(tmp_path)
    assert model.encoder.config.model_type == "electra"
    assert start.endswith("the head is new, as the checkpoint has none for this task")
    packed = pack(SENTENCES)
    states = model.eval().encoder.hidden_states(*packed.inputs)
    source_states = source.encoder.hidden_states(*packed.inputs)
    for state, source_state in zip(states, source_states, strict=True):
        torch.testing.assert_close(state, source_state, atol=1e-6, rtol=0)
    assert model.generator.encoder.embeddings.word is model.encoder.embeddings.word
    assert model.generator.encoder.config.num_attention_heads < model.encoder.config.num_attention_heads


def test_continued_training_uses_the_discriminator_head_of_the_checkpoint(tmp_path):
    with_random_weights(ReplacedTokenDetection(config_of("electra"), 0.5)).save(tmp_path)
    folder = tmp_path / "discriminator"
    before = load_file(folder / "model.safetensors")
    model, _, start = continued(folder)
    assert start.endswith("the head is that of the checkpoint")
    name = "discriminator_predictions.dense_prediction.weight"
    torch.testing.assert_close(model.head.classifier.weight.detach(), before[name])
    del before[name]
    save_file(before, folder / "model.safetensors")
    with pytest.raises(InputError, match="missing tensor discriminator_predictions.dense_prediction.weight"):
        continued(folder)
