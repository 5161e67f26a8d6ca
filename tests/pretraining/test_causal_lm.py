"""Causal language modeling: the labels, the loss, which equals that of transformers, and the runs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, open_in_transformers, vocabulary_folder
from safetensors.torch import load_file
from test_pretraining_loop import LINES, held_out, pretrain

from tmft.checkpoints.load import load_encoder
from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.models.families import FAMILIES, config_from_dict, random_encoder
from tmft.pretraining.causal_lm import CausalBert, CausalLM, NextTokens, add_causal_lm_head, load_causal_lm
from tmft.pretraining.corpus import TokenizedCorpus
from tmft.pretraining.token_heads import means_from_sums
from tmft.sentence_encoder import SentenceEncoder

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 30,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES * 12) + "\n", encoding="utf-8")
    return path


def content(model_type: str, **changes) -> dict:
    return SIZES | {"model_type": model_type, "tie_word_embeddings": False} | changes


def corpus_of(sentences: list[list[int]]) -> TokenizedCorpus:
    tokens = np.array([token for ids in sentences for token in ids], dtype=np.int32)
    return TokenizedCorpus(tokens, np.cumsum([0, *map(len, sentences)]))


def random_sentences(lengths) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, len(VOCABULARY), length).tolist() for length in lengths]


def tiny_folder(folder: Path, model_type: str, kind: str = "causal_lm_class", **changes) -> Path:
    """A checkpoint that transformers has written, with the tokenizer of the tests."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**content(model_type, **changes))
    model = getattr(transformers, getattr(FAMILIES[model_type], kind))(config)
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=0.5 if "norm" in name else 0.0, std=0.2)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_bytes((vocabulary_folder() / "vocab.txt").read_bytes())
    return folder


def test_the_label_of_each_token_is_the_next_token_of_its_sentence():
    sentences = [[7, 8, 9], [5], [4, 6], [], [3, 3, 3, 3]]
    batches, num_labels = NextTokens(pad_id=0).make_batches(corpus_of(sentences), None, [2, 3], 5)
    assert num_labels == 2 + 0 + 1 + 0 + 3
    pairs = []
    for batch in batches:
        inputs = batch.packed.input_ids.flatten()[batch.label_positions].tolist()
        pairs += zip(inputs, batch.labels.tolist(), strict=True)
        numbers = batch.packed.sentence_ids.flatten()
        assert torch.equal(numbers[batch.label_positions], numbers[batch.label_positions + 1])
    assert pairs == [(7, 8), (8, 9), (4, 6), (3, 3), (3, 3), (3, 3)]


def test_the_processes_share_each_batch():
    corpus = corpus_of(random_sentences((3, 9, 1, 5, 2)))
    whole, count = NextTokens(0).make_batches(corpus, None, [3, 2], 10)
    parts = [NextTokens(0).make_batches(corpus, None, [3, 2], 10, rank, 2) for rank in range(2)]
    assert [count for _, count in parts] == [count, count]
    for number, batch in enumerate(whole):
        labels = torch.cat([batches[number].labels for batches, _ in parts])
        assert sorted(labels.tolist()) == sorted(batch.labels.tolist())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", TYPES)
def test_loss_logits_and_gradients_equal_transformers(model_type, tied, tmp_path):
    import transformers

    changes = {"final_logit_softcapping": 2.0} if model_type == "gemma3_text" else {}
    folder = tiny_folder(tmp_path, model_type, tie_word_embeddings=tied, **changes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    model, _ = load_causal_lm(load_encoder(folder), ModelFolder.open(folder))
    assert (model.lm_head is None) is tied
    sentences = random_sentences((3, 11, 1, 6))
    [batch], num_labels = NextTokens(0).make_batches(corpus_of(sentences), None, [4], 16)
    sums = model.train()(batch)
    loss = model.loss(sums, num_labels, 21)

    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sentences], batch_first=True)
    mask = (ids > 0).long()
    output = theirs(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    assert loss.item() == pytest.approx(output.loss.item(), abs=2e-6)
    right = (output.logits.argmax(-1)[:, :-1] == ids[:, 1:])[mask[:, 1:].bool()].float().mean().item()
    assert means_from_sums({name: value.item() for name, value in sums.items()}) == pytest.approx(
        {"clm_loss": output.loss.item(), "clm_accuracy": right}, abs=1e-5
    )
    loss.backward()
    output.loss.backward()
    torch.testing.assert_close(
        model.encoder.embeddings.word.weight.grad, theirs.model.embed_tokens.weight.grad, rtol=0, atol=1e-5
    )
    if not tied:
        torch.testing.assert_close(model.lm_head.weight.grad, theirs.lm_head.weight.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", TYPES)
def test_a_saved_model_is_the_same_in_transformers_and_here(model_type, tied, tmp_path):
    torch.manual_seed(0)
    config = config_from_dict(content(model_type, tie_word_embeddings=tied, initializer_range=0.3))
    model = CausalLM(random_encoder(config)).eval()
    model.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in weights) is not tied and "model.norm.weight" in weights
    theirs = open_in_transformers(FAMILIES[model_type].causal_lm_class, tmp_path)
    sentences = random_sentences((7,))
    [batch], _ = NextTokens(0).make_batches(corpus_of(sentences), None, [1], 7)
    with torch.inference_mode():
        logits = theirs(input_ids=torch.tensor(sentences)).logits[0, :-1]
        torch.testing.assert_close(model.logits(batch), logits, rtol=0, atol=1e-5)
        again, _ = load_causal_lm(load_encoder(tmp_path), ModelFolder.open(tmp_path))
        assert torch.equal(again.eval().logits(batch), model.logits(batch))


def test_a_checkpoint_without_an_output_layer_predicts_with_its_word_embeddings(tmp_path):
    folder = tiny_folder(tmp_path, "llama", kind="transformers_class")
    model, report = load_causal_lm(load_encoder(folder), ModelFolder.open(folder))
    assert report == "the checkpoint has no output layer: predicts with the word embeddings"
    model.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/config.json").read_text())["tie_word_embeddings"] is True
    open_in_transformers("LlamaForCausalLM", tmp_path / "saved")


def test_a_decoder_learns_from_scratch_and_goes_on(tmp_path, text, capsys):
    """The second run begins with the held-out loss with which the first one ended."""
    shape = tmp_path / "shape"
    shape.mkdir()
    (shape / "config.json").write_text(json.dumps(content("qwen3")))
    (shape / "vocab.txt").write_bytes((vocabulary_folder() / "vocab.txt").read_bytes())
    options = {"task": "clm"}
    folder = pretrain(tmp_path, text, "--from-scratch", shape, "--steps", 20, "--lr", 1e-2, **options)
    before, after = held_out(folder, "clm_loss")
    assert before == pytest.approx(math.log(len(VOCABULARY)), rel=0.1) and after < 0.7 * before
    assert "next tokens right" in capsys.readouterr().out
    assert "causal language modeling" in (folder / "README.md").read_text()
    more = pretrain(tmp_path, text, "--ckpt", folder, "--steps", 2, name="more", **options)
    assert held_out(more, "clm_loss")[0] == pytest.approx(after, rel=1e-6)
    assert "uses the checkpoint's own output layer" in capsys.readouterr().out
    open_in_transformers("Qwen3ForCausalLM", more)
    assert SentenceEncoder.from_pretrained(more, layer=1).encode(["a cat"]).shape == (1, 24)


def test_a_tokenizer_needs_no_special_tokens(tmp_path, text):
    """The tokenizers of decoders have no [MASK], and some add no token to a text."""
    folder = tiny_folder(tmp_path / "tiny", "qwen3")
    backend = load_tokenizer(vocabulary_folder()).backend
    content = json.loads(backend.to_str()) | {"post_processor": None, "added_tokens": []}
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    run = pretrain(tmp_path, text, "--ckpt", folder, "--steps", 1, task="clm")
    assert (run / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"is_causal": False}, "task clm: tokens of this qwen3 attend to later ones"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "task clm: tokens of this"),
        ({"model_type": "eurobert"}, "a eurobert has no head for causal language modeling: choose one of be"),
        ({"model_type": "albert"}, "a albert has no head for causal language modeling: choose one of bert, "),
    ],
)
def test_what_cannot_predict_the_next_token_is_one_line(changes, message):
    with pytest.raises(InputError) as error:
        add_causal_lm_head(random_encoder(config_from_dict(content("qwen3") | changes)))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


# ------------------------------------------------------------------- BERT, kept from seeing later tokens


BERT_TYPES = ("bert", "electra", "roberta", "xlm-roberta", "camembert")


def bert_folder(folder: Path, model_type: str) -> Path:
    """A checkpoint with a head for masked tokens, in which tokens attend to both sides."""
    sizes = {"num_key_value_heads": None, "head_dim": None, "pad_token_id": 0, "type_vocab_size": 2}
    return tiny_folder(folder, model_type, "mlm_class", tie_word_embeddings=True, embedding_size=24, **sizes)


@pytest.mark.parametrize("model_type", BERT_TYPES)
def test_a_bert_made_causal_has_the_hidden_states_loss_and_gradients_of_transformers(model_type, tmp_path):
    import transformers

    folder = bert_folder(tmp_path / "bert", model_type)
    architecture = getattr(transformers, FAMILIES[model_type].causal_lm_class)
    theirs = architecture.from_pretrained(folder, is_decoder=True, dtype=torch.float32).eval()
    model, report = load_causal_lm(load_encoder(folder), ModelFolder.open(folder))
    assert isinstance(model, CausalBert) and "no token attends to later ones" in report
    sentences = random_sentences((3, 11, 1, 6))
    [batch], num_labels = NextTokens(0).make_batches(corpus_of(sentences), None, [4], 16)
    loss = model.loss(model.eval()(batch), num_labels, 21)

    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sentences], batch_first=True)
    mask = (ids > 0).long()
    labels = ids.masked_fill(mask == 0, -100)
    output = theirs(input_ids=ids, attention_mask=mask, labels=labels, output_hidden_states=True)
    assert loss.item() == pytest.approx(output.loss.item(), abs=2e-6)
    for state, reference in zip(model.encoder.hidden_states(ids, mask), output.hidden_states, strict=True):
        torch.testing.assert_close(state[mask > 0], reference[mask > 0], rtol=0, atol=1e-5)
    loss.backward()
    output.loss.backward()
    [reference] = [
        weight
        for name, weight in theirs.named_parameters()
        if name.endswith("layer.0.attention.self.key.weight")
    ]
    torch.testing.assert_close(
        model.encoder.layers[0].attention.key.weight.grad, reference.grad, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("model_type", BERT_TYPES)
def test_a_causal_bert_is_saved_as_one_and_read_both_ways_if_its_config_says_so(model_type, tmp_path):
    folder, saved = bert_folder(tmp_path / "bert", model_type), tmp_path / "saved"
    both_ways = load_encoder(folder)
    model, _ = load_causal_lm(load_encoder(folder), ModelFolder.open(folder))
    model.save(saved)
    open_in_transformers(FAMILIES[model_type].causal_lm_class, saved)
    config = json.loads((saved / "config.json").read_text())
    assert config["is_decoder"] is True
    _, report = load_causal_lm(load_encoder(saved), ModelFolder.open(saved))
    assert "no token attends" not in report  # it says so only once

    ids = torch.tensor([[3, 4, 5, 6]])
    changed = torch.tensor([[3, 4, 5, 7]])
    causal = load_encoder(saved).eval()
    assert torch.equal(causal(ids, ids > 0)[:, :3], causal(changed, ids > 0)[:, :3])
    (saved / "config.json").write_text(json.dumps(config | {"is_decoder": False}))
    states = load_encoder(saved).eval()(ids, ids > 0)
    assert torch.equal(states, both_ways.eval()(ids, ids > 0))
    assert not torch.equal(states[:, :3], load_encoder(saved).eval()(changed, ids > 0)[:, :3])


def test_a_bert_continues_with_next_tokens_and_is_fine_tuned_by_layer(tmp_path, text, capsys):
    folder = bert_folder(tmp_path / "bert", "bert")
    run = pretrain(tmp_path, text, "--ckpt", folder, "--steps", 20, "--lr", 1e-2, task="clm")
    assert "no token attends to later ones" in capsys.readouterr().out
    before, after = held_out(run, "clm_loss")
    assert after < 0.9 * before
    open_in_transformers("BertLMHeadModel", run)
    assert SentenceEncoder.from_pretrained(run, layer=1).encode(["a cat"]).shape == (1, 24)


@pytest.mark.parametrize("task", ["mlm", "rtd"])
def test_masked_tokens_need_both_sides(task, tmp_path, text):
    folder = bert_folder(tmp_path / "bert", "bert")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"is_decoder": True}))
    with pytest.raises(InputError, match=f"task {task}: tokens attend only to those before them"):
        pretrain(tmp_path, text, "--ckpt", folder, "--steps", 1, task=task)
