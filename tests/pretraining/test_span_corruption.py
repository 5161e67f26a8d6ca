"""Span corruption: the spans, the targets, the loss, which equals that of transformers, and the runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, open_in_transformers, vocabulary_folder

import train
from tmft.checkpoints.load import load_encoder, load_encoder_with_report
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.models.families import config_from_dict
from tmft.pretraining.corpus import TokenizedCorpus
from tmft.pretraining.span_corruption import SpanCorruption, SpanMasking, pack_spans, random_segmentation
from tmft.sentence_encoder import SentenceEncoder

CONTENT = {
    "model_type": "t5",
    "vocab_size": len(VOCABULARY),
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "dropout_rate": 0.0,
    "is_encoder_decoder": True,
}
CLS, SEP, MASK = (VOCABULARY.index(f"[{name}]") for name in ("CLS", "SEP", "MASK"))
MASKING = SpanMasking(np.array([MASK]), pad_id=0, num_prefix_tokens=1)
NUMBERED = replace(MASKING, sentinel_ids=np.array([50, 51, 52]))


def random_corpus(lengths) -> TokenizedCorpus:
    """Sentences of so many random tokens each, between [CLS] and [SEP]."""
    rng = np.random.default_rng(0)
    ids = [[CLS, *rng.integers(5, 40, length), SEP] for length in lengths]
    offsets = np.cumsum([0, *map(len, ids)])
    return TokenizedCorpus(np.concatenate(ids).astype(np.int32), offsets)


def token_lists(corpus: TokenizedCorpus) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(corpus.tokens, corpus.offsets[1:-1])]


# -------------------------------------------------------------------------------------------------- the spans


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 20, 100, 510])
def test_the_number_of_spans_and_of_their_tokens_follows_density_and_mean_length(length):
    rng = np.random.default_rng(length)
    for _ in range(50):
        noise_mask = MASKING.random_spans_noise_mask(length, rng)
        num_noise_tokens = min(max(round(0.15 * length), 1), max(length - 1, 0))
        assert noise_mask.sum() == num_noise_tokens
        span_starts = np.diff(np.concatenate([[0], noise_mask])) == 1
        expected = min(max(round(num_noise_tokens / 3), 1), num_noise_tokens) if num_noise_tokens else 0
        assert span_starts.sum() == expected


def test_spans_are_anywhere_in_the_text():
    rng = np.random.default_rng(0)
    frequency = np.mean([MASKING.random_spans_noise_mask(10, rng) for _ in range(4000)], axis=0)
    assert frequency == pytest.approx(0.2, abs=0.12)
    assert frequency[0] > 0.05 and frequency[-1] > 0.05


def test_all_segmentations_are_equally_likely():
    rng = np.random.default_rng(0)
    drawn = [tuple(random_segmentation(5, 3, rng)) for _ in range(6000)]
    counts = {segments: drawn.count(segments) for segments in set(drawn)}
    assert len(counts) == 6 and all(sum(segments) == 5 and min(segments) >= 1 for segments in counts)
    assert min(counts.values()) > 850 and max(counts.values()) < 1150


@pytest.mark.parametrize("masking", [MASKING, NUMBERED])
def test_the_target_has_the_spans_that_the_encoder_input_lacks(masking):
    corpus = random_corpus([30, 1, 7, 60, 2, 0, 64])
    encoder_inputs, targets = masking(corpus, np.random.default_rng(1))
    lists = map(token_lists, (corpus, encoder_inputs, targets))
    for original, encoder_input, target in zip(*lists, strict=True):
        assert encoder_input[0] == CLS and encoder_input[-1] == target[-1] == SEP
        sentinels = [id for id in encoder_input if id in masking.sentinel_ids]
        expected = list(masking.sentinel_ids) + [masking.sentinel_ids[-1]] * 9
        assert sentinels == [id for id in target if id in masking.sentinel_ids] == expected[: len(sentinels)]
        spans, span = [], []
        for id in target[1:]:
            if id in masking.sentinel_ids or id == SEP:
                spans.append(span)
                span = []
            else:
                span.append(id)
        restored = []
        for id in encoder_input:
            restored += spans.pop(0) if id in masking.sentinel_ids else [id]
        assert restored == original


def test_sentinels_are_those_of_t5_if_the_vocabulary_has_them():
    tokenizer = load_tokenizer(vocabulary_folder())
    assert SpanMasking.from_tokenizer(tokenizer).sentinel_ids.tolist() == [MASK]
    tokenizer.backend.add_special_tokens([f"<extra_id_{n}>" for n in range(3)])
    ids = [tokenizer.backend.token_to_id(f"<extra_id_{n}>") for n in range(3)]
    assert SpanMasking.from_tokenizer(tokenizer).sentinel_ids.tolist() == ids
    assert SpanMasking.from_tokenizer(tokenizer).num_prefix_tokens == 1


def test_two_processes_together_have_the_batch_and_the_spans_of_one():
    corpus = random_corpus([9, 4, 12, 7, 8, 20, 3])
    (single,), M = MASKING.make_batches(corpus, np.random.default_rng(0), [7], 32)
    both = [MASKING.make_batches(corpus, np.random.default_rng(0), [7], 32, rank, 2) for rank in (0, 1)]
    assert [num_labels for _, num_labels in both] == [M, M]
    labels = torch.cat([batch.labels for (batch,), _ in both])
    assert labels.sort().values.equal(single.labels.sort().values) and len(labels) == M


# -------------------------------------------------------------------------------------------------- the model


def random_model(**changes) -> SpanCorruption:
    torch.manual_seed(0)
    model = SpanCorruption(replace(config_from_dict(CONTENT | changes), components=("decoder",)))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.mark.parametrize("changes", [{}, {"feed_forward_proj": "gated-gelu"}])
def test_the_logits_and_the_loss_equal_those_of_transformers(changes, tmp_path):
    model = random_model(**changes)
    model.save(tmp_path)
    reference = open_in_transformers("T5ForConditionalGeneration", tmp_path)
    encoder_inputs, targets = MASKING(random_corpus([30, 1, 7, 60, 2, 64]), np.random.default_rng(1))
    batch = pack_spans(encoder_inputs, targets, 80, 0)
    sums, logits = model(batch), model.logits(batch)
    sentence_ids = batch.decoder_inputs.sentence_ids
    sentence_ids = sentence_ids[sentence_ids > 0]  # (M,), as logits
    total = 0
    pairs = zip(token_lists(encoder_inputs), token_lists(targets), strict=True)
    for number, (encoder_input, target) in enumerate(pairs, start=1):
        output = reference(input_ids=torch.tensor([encoder_input]), labels=torch.tensor([target]))
        torch.testing.assert_close(logits[sentence_ids == number], output.logits[0], rtol=0, atol=1e-5)
        total += output.loss.item() * len(target)
    assert sums["span"].item() == pytest.approx(total, rel=1e-5)
    assert sums["masked"] == len(sentence_ids) == len(targets.tokens)


def test_every_weight_gets_a_gradient():
    model = random_model()
    (batch,), M = MASKING.make_batches(random_corpus([30, 7, 60]), np.random.default_rng(0), [3], 80)
    model.loss(model(batch), M, 0).backward()
    assert all(weight.grad.any() for weight in model.parameters())


def test_a_saved_model_is_loaded_as_an_encoder_and_with_its_first_decoder_output(tmp_path):
    model = random_model()
    model.save(tmp_path)
    encoder, report = load_encoder_with_report(tmp_path, components=["decoder"])
    assert report.ignored_heads == {"rest of the decoder": 2 * 2 + 1}
    (batch,), _ = MASKING.make_batches(random_corpus([30, 7, 60]), np.random.default_rng(0), [3], 80)
    with torch.inference_mode():
        hidden = encoder(*batch.encoder_inputs.inputs)
        first = encoder.decoder_pooling(hidden, batch.encoder_inputs) * CONTENT["d_model"] ** -0.5
        scores = first @ encoder.embeddings.word.weight.t()
        logits = model.logits(batch)
    is_token = batch.decoder_inputs.sentence_ids > 0
    sentence_ids = batch.decoder_inputs.sentence_ids[is_token]
    is_first = batch.decoder_inputs.position_ids[is_token] == 0
    torch.testing.assert_close(scores[sentence_ids[is_first] - 1], logits[is_first], rtol=0, atol=1e-5)


# ---------------------------------------------------------------------------------------------------- the run


@pytest.fixture
def shape(tmp_path):
    """A folder with a config.json, a vocabulary and a text."""
    folder = vocabulary_folder()
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(CONTENT))
    lines = ["a man plays guitar in the park", "the dog is not in the park", "two cats eats music"] * 40
    (tmp_path / "text.txt").write_text("\n".join(f"{line} {n % 7 * 'a '}" for n, line in enumerate(lines)))
    return tmp_path


def run(shape, *more: str) -> None:
    options = ["--text", str(shape / "text.txt"), "--output-dir", str(shape / "runs"), "--run-name", "t"]
    recipe = ["--batch-size", "16", "--max-length", "16", "--lr", "3e-3", "--device", "cpu"]
    train.main(["--task", "span", "--from-scratch", str(shape), *options, *recipe, *more])


def test_a_run_learns_and_saves_encoder_and_decoder_for_tmft_and_transformers(shape, capsys):
    run(shape, "--steps", "60", "--precision", "fp32")
    result = json.loads((shape / "runs/t-seed0/result.json").read_text())
    before, after = result["held_out"]["before"], result["held_out"]["after"]
    assert after["span_loss"] < before["span_loss"] - 0.5
    assert "held out span " in capsys.readouterr().out
    folder = shape / "runs/t-seed0"
    assert "span corruption" in (folder / "README.md").read_text()
    assert load_encoder(folder).config.num_hidden_layers == 3
    reference = open_in_transformers("T5ForConditionalGeneration", folder)
    assert len(reference.decoder.block) == 2
    embeddings = SentenceEncoder.from_pretrained(folder, layer=1, pooling="decoder").encode(
        ["a man", "the dog eats"]
    )
    assert embeddings.shape == (2, 24) and np.isfinite(embeddings).all()


@pytest.mark.parametrize("changes", [{"model_type": "mt5"}, {"num_decoder_layers": 0}])
def test_a_t5_that_cannot_be_trained_is_a_one_line_error(shape, changes):
    content = CONTENT | changes
    (shape / "config.json").write_text(json.dumps(content))
    model_type = content["model_type"]
    message = f"task span cannot train this {model_type}: name the config.json of a t5 with a decoder"
    with pytest.raises(InputError, match=message):
        run(shape, "--steps", "1")


def test_an_electra_cannot_be_trained_with_spans(shape):
    from conftest import tiny_config

    (shape / "config.json").write_text(json.dumps(tiny_config(vocab_size=len(VOCABULARY))))
    with pytest.raises(InputError, match="task span cannot train this electra: name the config.json of a t5"):
        run(shape, "--steps", "1")


def test_span_corruption_trains_from_scratch_only(tmp_path):
    with pytest.raises(
        InputError, match="task span trains from scratch only: use from_scratch instead of ckpt"
    ):
        train.main(["--task", "span", "--ckpt", "x", "--text", __file__])


def test_the_error_of_mlm_with_a_t5_names_the_task_for_t5(shape):
    with pytest.raises(
        InputError, match="a t5 has no head for masked .*: choose one of .*, or task span for a T5"
    ):
        train.main(["--task", "mlm", "--from-scratch", str(shape), "--text", str(shape / "text.txt")])
