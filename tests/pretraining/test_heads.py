"""Heads and objectives: their losses are those of transformers, and what is saved opens there."""

import json
import math

import pytest
import torch
from conftest import VOCABULARY, open_in_transformers, tiny_config
from safetensors.torch import load_file, save_file

from tmft.checkpoints.load import load_encoder
from tmft.errors import InputError
from tmft.models.base import EncoderConfig
from tmft.models.registry import DEBERTA_V3_MLM, FAMILIES, config_from_dict, random_encoder
from tmft.packing import PackedBatch, pack
from tmft.pretraining.heads import (
    MaskedLM,
    ReplacedTokenDetection,
    figures,
    generator_config,
    read_mlm_head,
    sample,
)
from tmft.pretraining.loop import PretrainingRecipe
from tmft.pretraining.masking import Batch
from tmft.runs.pretrain import from_checkpoint
from tmft.runs.run_config import PretrainingConfig

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
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
}


VERSION_3 = FAMILIES["deberta-v2"].mlm_head_layouts.index(DEBERTA_V3_MLM)


def random_weights(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(1)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def config_of(shape: str) -> EncoderConfig:
    return config_from_dict(tiny_config(**SHAPES[shape], **NO_DROPOUT))


def batch_of(places: list[tuple[int, int]]) -> tuple[Batch, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The masked (sentence, token) places of SENTENCES in rows, and one sentence per row with its labels."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in SENTENCES], batch_first=True)
    mask, labels = ids != 0, torch.full_like(ids, -100)
    masked = [list(sentence) for sentence in SENTENCES]
    for sentence, token in places:
        labels[sentence, token] = ids[sentence, token]
        ids[sentence, token] = masked[sentence][token] = 4
    rows = pack(masked, packed_length=12)
    found = []
    for sentence, token in places:
        first = (rows.sentence_ids.flatten() == sentence + 1).nonzero()[0].item()
        found.append(first + token)
    wanted = torch.tensor([SENTENCES[s][t] for s, t in places])
    return Batch(rows, torch.tensor(found), wanted), ids, mask, labels


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mlm_loss_and_the_saved_head_are_those_of_transformers(shape, tmp_path):
    model = random_weights(MaskedLM(random_encoder(config_of(shape))))
    model.save(tmp_path)
    (name,) = json.loads((tmp_path / "config.json").read_text())["architectures"]
    theirs = open_in_transformers(name, tmp_path)

    batch, ids, mask, labels = batch_of([(0, 2), (0, 4), (1, 1), (3, 5)])
    with torch.inference_mode():
        ours = figures(model(batch))["mlm_loss"].item()
        expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels).loss.item()
    assert ours == pytest.approx(expected, abs=1e-5) and ours > 1
    names = load_file(tmp_path / "model.safetensors")
    assert sum("word_embeddings" in name or "decoder" in name for name in names) == 1  # the table is tied


@pytest.mark.parametrize("shape", SHAPES)
def test_the_mlm_loss_in_rows_is_that_of_one_sentence_per_row(shape):
    """And of a softmax over all words at each masked token, written out."""
    model = random_weights(MaskedLM(random_encoder(config_of(shape))))
    batch, ids, mask, labels = batch_of([(0, 2), (0, 4), (1, 1), (3, 5)])
    with torch.inference_mode():
        logits = model.head(model.encoder(ids, mask), model.encoder.embeddings.word.weight)
        scores = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
        means = figures(model(batch))
    masked = labels != -100
    assert means["mlm_loss"].item() == pytest.approx(-scores[masked].mean().item(), abs=1e-5)
    right = (logits.argmax(-1) == labels)[masked].float().mean().item()
    assert means["mlm_accuracy"].item() == pytest.approx(right)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_comes_back_as_it_was_saved_and_the_encoder_loads_without_it(shape, tmp_path):
    model = random_weights(MaskedLM(random_encoder(config_of(shape))))
    model.save(tmp_path)
    head, layout = read_mlm_head(tmp_path, model.encoder.config)
    assert layout == model.layout == 0
    for name, weight in model.head.state_dict().items():
        assert torch.equal(weight, head.state_dict()[name]), name
    for a, b in zip(load_encoder(tmp_path).parameters(), model.encoder.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_a_deberta_keeps_the_layout_of_its_head(tmp_path):
    """Version 3's own files call it lm_predictions; transformers reads that with legacy: false."""
    encoder = random_encoder(config_of("deberta-v2"))
    model = random_weights(MaskedLM(encoder, layout=VERSION_3))
    model.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["legacy"] is False
    theirs = open_in_transformers("DebertaV2ForMaskedLM", tmp_path)
    batch, ids, mask, labels = batch_of([(0, 2), (3, 5)])
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels).loss.item()
        assert figures(model(batch))["mlm_loss"].item() == pytest.approx(expected, abs=1e-5)
    assert read_mlm_head(tmp_path, encoder.config)[1] == VERSION_3


@pytest.mark.slow
def test_what_transformers_saves_is_read_with_old_names_too(tmp_path):
    import transformers

    theirs = random_weights(
        transformers.BertForMaskedLM(transformers.BertConfig(**tiny_config(**SHAPES["bert"])))
    )
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): weight
        for name, weight in load_file(path).items()
    }
    save_file(old, path)
    head, _ = read_mlm_head(tmp_path, config_of("bert"))
    transform = theirs.cls.predictions.transform
    assert torch.equal(head.norm.weight, transform.LayerNorm.weight)
    assert torch.equal(head.dense.weight, transform.dense.weight)
    assert torch.equal(head.bias, theirs.cls.predictions.bias)


def test_no_head_is_none_and_half_a_head_or_a_wrong_shape_is_an_error(tmp_path):
    model = MaskedLM(random_encoder(config_of("electra")))
    model.save(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)

    save_file({k: w for k, w in weights.items() if "generator" not in k}, path)
    assert read_mlm_head(tmp_path, model.encoder.config) is None
    save_file({k: w for k, w in weights.items() if k != "generator_lm_head.bias"}, path)
    with pytest.raises(InputError, match="missing tensor generator_lm_head.bias .*: the head is incomplete"):
        read_mlm_head(tmp_path, model.encoder.config)
    save_file(weights | {"generator_lm_head.bias": torch.zeros(3)}, path)
    with pytest.raises(InputError, match=r"generator_lm_head.bias has shape \(3,\) .*: config.json asks for"):
        read_mlm_head(tmp_path, model.encoder.config)


def test_a_discriminator_starts_from_the_share_of_replaced_tokens():
    """With a loss of ln 2 it would learn that share first, and all layers with it: see docs/LOG.md."""
    head = ReplacedTokenDetection(config_of("electra"), generator_size=0.5).head
    with torch.inference_mode():
        share = head(torch.randn(1000, 24)).sigmoid().mean().item()
    assert share == pytest.approx(0.13, abs=0.05)


@pytest.mark.slow
def test_both_losses_of_rtd_are_those_of_transformers_on_the_sampled_words(tmp_path, monkeypatch):
    """The generator's words are fixed; one of them is the true one, which counts as original."""
    model = random_weights(ReplacedTokenDetection(config_of("electra"), generator_size=0.5))
    batch, ids, mask, labels = batch_of([(0, 2), (0, 4), (1, 1), (3, 5)])
    words = torch.tensor([40, SENTENCES[0][4], 41, 42])
    monkeypatch.setattr("tmft.pretraining.heads.sample", lambda logits: words)
    model.save(tmp_path)
    discriminator = open_in_transformers("ElectraForPreTraining", tmp_path / "discriminator")
    generator = open_in_transformers("ElectraForMaskedLM", tmp_path / "generator")

    corrupted = ids.clone()
    for (sentence, token), word in zip([(0, 2), (0, 4), (1, 1), (3, 5)], words, strict=True):
        corrupted[sentence, token] = word
    original = torch.where(labels == -100, ids, labels)
    with torch.inference_mode():
        sums = model(batch)
        means = {name: float(value) for name, value in figures(sums).items()}
        mlm = generator(input_ids=ids, attention_mask=mask.long(), labels=labels).loss.item()
        replaced = (corrupted != original).long()
        rtd = discriminator(input_ids=corrupted, attention_mask=mask.long(), labels=replaced)
    assert means["mlm_loss"] == pytest.approx(mlm, abs=1e-5)
    assert means["rtd_loss"] == pytest.approx(rtd.loss.item(), abs=1e-5)
    tokens = mask.sum().item()
    assert means["rtd_baseline"] == pytest.approx((tokens - 3) / tokens)
    right = ((rtd.logits > 0) == replaced.bool())[mask].float().mean().item()
    assert means["rtd_accuracy"] == pytest.approx(right)
    total = model.loss(sums, masked=4, tokens=tokens).item()
    assert total == pytest.approx(mlm + 50 * rtd.loss.item(), rel=1e-5)


def test_the_generator_is_narrow_and_shares_the_embeddings_but_no_gradient_of_the_samples():
    model = ReplacedTokenDetection(config_of("electra"), generator_size=0.5)
    generator = model.generator.encoder
    assert generator.config == generator_config(model.encoder.config, 0.5)
    assert (generator.config.hidden_size, generator.config.num_attention_heads) == (12, 2)
    for name in ("word", "position", "token_type", "norm"):
        assert getattr(generator.embeddings, name) is getattr(model.encoder.embeddings, name)
    batch, *_ = batch_of([(0, 2), (1, 1)])
    model(batch)["rtd"].backward()
    own = [weight for layer in generator.layers for weight in layer.parameters()]
    assert all(weight.grad is None for weight in [*own, *model.generator.head.parameters()])
    assert model.encoder.embeddings.word.weight.grad is not None


def test_words_are_sampled_with_the_probabilities_of_the_softmax():
    torch.manual_seed(0)
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    words = sample(probabilities.log().expand(20_000, -1))
    shares = torch.bincount(words, minlength=5) / len(words)
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=4 * math.sqrt(0.25 / len(words)))


def test_logits_are_computed_for_masked_tokens_only():
    model = MaskedLM(random_encoder(config_of("bert")))
    batch, *_ = batch_of([(0, 2), (1, 1), (3, 3)])
    assert model.logits(batch).shape == (3, len(VOCABULARY))
    assert batch.rows.input_ids.numel() > 3 and isinstance(batch.rows, PackedBatch)


def test_rtd_wants_an_electra():
    said = "replaced-token detection: the shape is a bert; name the config.json of an electra"
    with pytest.raises(InputError, match=said):
        ReplacedTokenDetection(config_of("bert"), 0.25)


@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if not row.mlm_head_layouts])
def test_a_family_without_an_mlm_head_is_refused_before_any_work(family):
    t5 = {"d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 4}
    encoder = random_encoder(config_from_dict(tiny_config(model_type=family, **t5)))
    with pytest.raises(InputError, match=f"a {family} has no head for it; take one of bert, electra, deb"):
        MaskedLM(encoder)


# ------------------------------------------------------------------------------ a discriminator that goes on


@pytest.mark.parametrize("shape", ["bert", "electra", "electra without projection"])
def test_a_discriminator_may_start_from_any_encoder_of_its_shape(shape, tmp_path):
    """The weights of an MLM twin under ELECTRA's name: hidden states are the same, the head is new."""
    source = random_weights(MaskedLM(random_encoder(config_of(shape))))
    source.save(tmp_path)
    save_tokenizer(tmp_path)
    recipe = PretrainingRecipe(max_length=16)
    what = PretrainingConfig(task="rtd", ckpt=str(tmp_path), text=(tmp_path / "x.txt",), recipe=recipe)
    model, _, start = from_checkpoint(what)
    assert (
        model.encoder.config.model_type == "electra" and "no discriminator's head in it: a new one" in start
    )
    rows = pack(SENTENCES)
    for ours, theirs in zip(
        model.eval().encoder.hidden_states(*rows.inputs),
        source.encoder.hidden_states(*rows.inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert model.generator.encoder.embeddings.word is model.encoder.embeddings.word
    assert model.generator.encoder.config.num_attention_heads < model.encoder.config.num_attention_heads


def test_a_discriminator_goes_on_with_its_own_head(tmp_path):
    random_weights(ReplacedTokenDetection(config_of("electra"), 0.5)).save(tmp_path)
    folder = tmp_path / "discriminator"
    save_tokenizer(folder)
    before = load_file(folder / "model.safetensors")
    what = PretrainingConfig(
        task="rtd", ckpt=str(folder), text=(tmp_path / "x.txt",), recipe=PretrainingRecipe(max_length=16)
    )
    model, _, start = from_checkpoint(what)
    assert "its own head" in start
    theirs = "discriminator_predictions.dense_prediction.weight"
    torch.testing.assert_close(model.head.classify.weight.detach(), before[theirs])
    del before[theirs]
    save_file(before, folder / "model.safetensors")
    with pytest.raises(InputError, match="missing tensor discriminator_predictions.dense_prediction.weight"):
        from_checkpoint(what)


def test_a_deberta_is_no_discriminator_to_go_on_with(tmp_path):
    MaskedLM(random_encoder(config_of("deberta-v2"))).save(tmp_path)
    save_tokenizer(tmp_path)
    what = PretrainingConfig(
        task="rtd", ckpt=str(tmp_path), text=(tmp_path / "x.txt",), recipe=PretrainingRecipe(max_length=16)
    )
    with pytest.raises(InputError, match="replaced-token detection: .* a deberta-v2; name .* electra"):
        from_checkpoint(what)


def save_tokenizer(folder) -> None:
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
