"""Span corruption: what is cut out and written, the loss that transformers computes, runs that go on."""

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
from tmft.models.registry import config_from_dict
from tmft.pretraining.corpus import Sentences
from tmft.pretraining.span_corruption import SpanCorruption, SpanMasking, pack_spans, parts
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
MASKING = SpanMasking(np.array([MASK]), pad_id=0, before=1)
NUMBERED = replace(MASKING, sentinels=np.array([50, 51, 52]))


def some_sentences(lengths) -> Sentences:
    """Of so many words each, between [CLS] and [SEP]."""
    rng = np.random.default_rng(0)
    ids = [[CLS, *rng.integers(5, 40, length), SEP] for length in lengths]
    offsets = np.cumsum([0, *map(len, ids)])
    return Sentences(np.concatenate(ids).astype(np.int32), offsets)


def each(sentences: Sentences) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(sentences.tokens, sentences.offsets[1:-1])]


# -------------------------------------------------------------------------------------------------- the holes


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 20, 100, 510])
def test_a_text_has_as_many_holes_as_the_share_and_their_length_ask_for(count):
    rng = np.random.default_rng(count)
    for _ in range(50):
        hole = MASKING.holes(count, rng)
        cut = min(max(round(0.15 * count), 1), max(count - 1, 0))
        assert hole.sum() == cut
        opens = np.diff(np.concatenate([[0], hole])) == 1
        assert opens.sum() == (min(max(round(cut / 3), 1), cut) if cut else 0)


def test_holes_are_anywhere():
    rng = np.random.default_rng(0)
    often = np.mean([MASKING.holes(10, rng) for _ in range(4000)], axis=0)
    assert often == pytest.approx(0.2, abs=0.12)
    assert often[0] > 0.05 and often[-1] > 0.05


def test_parts_are_each_way_to_share_out_equally_often():
    rng = np.random.default_rng(0)
    drawn = [tuple(parts(5, 3, rng)) for _ in range(6000)]
    ways = {way: drawn.count(way) for way in set(drawn)}
    assert len(ways) == 6 and all(sum(way) == 5 and min(way) >= 1 for way in ways)
    assert min(ways.values()) > 850 and max(ways.values()) < 1150


@pytest.mark.parametrize("masking", [MASKING, NUMBERED])
def test_what_is_written_fills_the_holes(masking):
    sentences = some_sentences([30, 1, 7, 60, 2, 0, 64])
    read, text = masking(sentences, np.random.default_rng(1))
    for original, seen, written in zip(each(sentences), each(read), each(text), strict=True):
        assert seen[0] == CLS and seen[-1] == written[-1] == SEP
        marks = [id for id in seen if id in masking.sentinels]
        expected = list(masking.sentinels) + [masking.sentinels[-1]] * 9
        assert marks == [id for id in written if id in masking.sentinels] == expected[: len(marks)]
        spans, span = [], []
        for id in written[1:]:
            if id in masking.sentinels or id == SEP:
                spans.append(span)
                span = []
            else:
                span.append(id)
        restored = []
        for id in seen:
            restored += spans.pop(0) if id in masking.sentinels else [id]
        assert restored == original


def test_sentinels_are_those_of_t5_where_the_vocabulary_has_them():
    tokenizer = load_tokenizer(vocabulary_folder())
    assert SpanMasking.of(tokenizer).sentinels.tolist() == [MASK]
    tokenizer.backend.add_special_tokens([f"<extra_id_{n}>" for n in range(3)])
    ids = [tokenizer.backend.token_to_id(f"<extra_id_{n}>") for n in range(3)]
    assert SpanMasking.of(tokenizer).sentinels.tolist() == ids
    assert SpanMasking.of(tokenizer).before == 1


def test_processes_share_the_sentences_of_a_batch_whose_holes_are_the_same():
    sentences = some_sentences([9, 4, 12, 7, 8, 20, 3])
    (whole,), M = MASKING.batches(sentences, np.random.default_rng(0), [7], 32)
    found = [MASKING.batches(sentences, np.random.default_rng(0), [7], 32, rank, 2) for rank in (0, 1)]
    assert [count for _, count in found] == [M, M]
    labels = torch.cat([batch.labels for (batch,), _ in found])
    assert labels.sort().values.equal(whole.labels.sort().values) and len(labels) == M


# -------------------------------------------------------------------------------------------------- the model


def model_of(**changes) -> SpanCorruption:
    torch.manual_seed(0)
    model = SpanCorruption(replace(config_from_dict(CONTENT | changes), components=("decoder",)))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.mark.parametrize("changes", [{}, {"feed_forward_proj": "gated-gelu"}])
def test_the_logits_and_the_loss_are_those_of_transformers(changes, tmp_path):
    model = model_of(**changes)
    model.save(tmp_path)
    theirs = open_in_transformers("T5ForConditionalGeneration", tmp_path)
    read, text = MASKING(some_sentences([30, 1, 7, 60, 2, 64]), np.random.default_rng(1))
    batch = pack_spans(read, text, 80, 0)
    sums, logits = model(batch), model.logits(batch)
    of = batch.written.sentence_ids[batch.written.sentence_ids > 0]
    total = 0
    for number, (seen, written) in enumerate(zip(each(read), each(text), strict=True), start=1):
        output = theirs(input_ids=torch.tensor([seen]), labels=torch.tensor([written]))
        torch.testing.assert_close(logits[of == number], output.logits[0], rtol=0, atol=1e-5)
        total += output.loss.item() * len(written)
    assert sums["span"].item() == pytest.approx(total, rel=1e-5)
    assert sums["masked"] == len(of) == len(text.tokens)


def test_every_weight_gets_a_gradient():
    model = model_of()
    (batch,), M = MASKING.batches(some_sentences([30, 7, 60]), np.random.default_rng(0), [3], 80)
    model.loss(model(batch), M, 0).backward()
    assert all(weight.grad.any() for weight in model.parameters())


def test_a_saved_one_is_read_as_encoder_and_with_its_first_output(tmp_path):
    model = model_of()
    model.save(tmp_path)
    encoder, report = load_encoder_with_report(tmp_path, components=["decoder"])
    assert report.ignored_heads == {"rest of the decoder": 2 * 2 + 1}
    (batch,), _ = MASKING.batches(some_sentences([30, 7, 60]), np.random.default_rng(0), [3], 80)
    with torch.inference_mode():
        hidden = encoder(*batch.rows.inputs)
        first = encoder.decoder_pooling(hidden, batch.rows) * CONTENT["d_model"] ** -0.5
        scores = first @ encoder.embeddings.word.weight.t()
        logits = model.logits(batch)
    number = batch.written.sentence_ids[batch.written.sentence_ids > 0]
    begins = batch.written.position_ids[batch.written.sentence_ids > 0] == 0
    torch.testing.assert_close(scores[number[begins] - 1], logits[begins], rtol=0, atol=1e-5)


# ---------------------------------------------------------------------------------------------------- the run


@pytest.fixture
def shape(tmp_path):
    """A config.json with a vocabulary beside it, and a text."""
    folder = vocabulary_folder()
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(CONTENT))
    lines = ["a man plays guitar in the park", "the dog is not in the park", "two cats eats music"] * 40
    (tmp_path / "text.txt").write_text("\n".join(f"{line} {n % 7 * 'a '}" for n, line in enumerate(lines)))
    return tmp_path


def run(shape, *more: str) -> None:
    where = ["--text", str(shape / "text.txt"), "--runs", str(shape / "runs"), "--name", "t"]
    recipe = ["--batch-size", "16", "--max-length", "16", "--lr", "3e-3", "--device", "cpu"]
    train.main(["--task", "span", "--from-scratch", str(shape), *where, *recipe, *more])


def test_a_run_learns_and_leaves_a_whole_t5_that_tmft_and_transformers_open(shape, capsys):
    run(shape, "--steps", "60", "--precision", "fp32")
    result = json.loads((shape / "runs/t-seed0/result.json").read_text())
    before, after = result["held_out"]["before"], result["held_out"]["after"]
    assert after["span_loss"] < before["span_loss"] - 0.5
    assert "held out span " in capsys.readouterr().out
    folder = shape / "runs/t-seed0"
    assert "span corruption" in (folder / "README.md").read_text()
    assert load_encoder(folder).config.num_hidden_layers == 3
    whole = open_in_transformers("T5ForConditionalGeneration", folder)
    assert len(whole.decoder.block) == 2
    embeddings = SentenceEncoder.from_pretrained(folder, layer=1, pooling="decoder").encode(
        ["a man", "the dog eats"]
    )
    assert embeddings.shape == (2, 24) and np.isfinite(embeddings).all()


@pytest.mark.parametrize("changes", [{"model_type": "mt5"}, {"num_decoder_layers": 0}])
def test_a_shape_that_cannot_be_trained_so_is_one_line(shape, changes):
    content = CONTENT | changes
    (shape / "config.json").write_text(json.dumps(content))
    expected = (
        f"task span: the shape is a {content['model_type']}; name the config.json of a t5 with a decoder"
    )
    with pytest.raises(InputError, match=expected):
        run(shape, "--steps", "1")


def test_a_bert_is_no_shape_for_it(shape):
    from conftest import tiny_config

    (shape / "config.json").write_text(json.dumps(tiny_config(vocab_size=len(VOCABULARY))))
    with pytest.raises(InputError, match="task span: the shape is a electra; name the config.json of a t5"):
        run(shape, "--steps", "1")


def test_it_starts_from_scratch(tmp_path):
    with pytest.raises(InputError, match="task span: it starts with from_scratch, not with ckpt"):
        train.main(["--task", "span", "--ckpt", "x", "--text", __file__])


def test_masked_language_modelling_of_a_t5_names_the_task_that_it_has(shape):
    with pytest.raises(InputError, match="a t5 has no head for it; take one of .*, or task span for a T5"):
        train.main(["--task", "mlm", "--from-scratch", str(shape), "--text", str(shape / "text.txt")])
