"""The small checkpoints in data/twins: they are what their cards say; commands without arguments use them."""

import json
from itertools import pairwise

import pytest
import torch
from conftest import ROOT, assert_equal_hidden_states, open_in_transformers

import cka
from tmft import InputError, SentenceEncoder
from tmft.checkpoints.load import load_encoder
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task, read_sentences
from tmft.metrics import cosines, spearman

TWINS = ROOT / "data/twins"
CLASSES = {
    "mlm": "BertForMaskedLM",
    "discriminator": "ElectraForPreTraining",
    "generator": "ElectraForMaskedLM",
}
PAIR = {"mlm-then-rtd": "ElectraForPreTraining", "mlm-then-mlm": "BertForMaskedLM"}  # of one ancestor, mlm
COLUMNS = {"mlm": "MLM twin", "discriminator": "discriminator", "generator": "its generator"}
SENTENCES = ["A man plays the guitar.", "Two dogs run in the park, not a cat!", "Música?"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES | PAIR)
def test_a_twin_opens_in_transformers_with_its_head_and_equal_hidden_states(name):
    import transformers

    whole = open_in_transformers((CLASSES | PAIR)[name], TWINS / name)
    model = SentenceEncoder.from_pretrained(TWINS / name)
    theirs = transformers.AutoTokenizer.from_pretrained(TWINS / name)
    ids = model.tokenize(SENTENCES)
    assert theirs(SENTENCES)["input_ids"] == ids
    ours = load_encoder(TWINS / name).double()  # in float32 rounding alone makes 1.2e-5 in the generator
    assert_equal_hidden_states(ours, whole.base_model.double(), ids, tolerance=1e-10)


def test_the_twins_differ_in_nothing_but_what_they_learnt():
    """Shape, vocabulary and, by their results, text, steps, seed, tokens and the rest of the settings."""
    configs = [json.loads((TWINS / name / "config.json").read_text()) for name in ("mlm", "discriminator")]
    shapes = [
        {key: config.get(key) for key in configs[0] if key not in ("architectures", "model_type")}
        for config in configs
    ]
    assert shapes[0] == shapes[1]
    assert len({(TWINS / name / "tokenizer.json").read_text() for name in CLASSES}) == 1
    mlm, rtd = (json.loads((TWINS / name / "result.json").read_text()) for name in ("mlm", "discriminator"))
    assert mlm["tokens_seen"] == rtd["tokens_seen"]
    for key in mlm["settings"].keys() - {"task", "from_scratch", "generator_size"}:
        assert mlm["settings"][key] == rtd["settings"][key], key
    for name in CLASSES:
        assert (TWINS / name / "model.safetensors").stat().st_size < 8e6
        assert "tokens seen" in (TWINS / name / "README.md").read_text()


def test_the_pair_differs_in_nothing_but_how_it_went_on():
    results = [json.loads((TWINS / name / "result.json").read_text()) for name in PAIR]
    rtd, mlm = results
    assert rtd["settings"]["task"] == "rtd" and mlm["settings"]["task"] == "mlm"
    for key in mlm["settings"].keys() - {"task", "generator_size"}:
        assert mlm["settings"][key] == rtd["settings"][key], key
    assert mlm["tokens_seen"] == rtd["tokens_seen"] and mlm["settings"]["ckpt"] == "data/twins/mlm"
    assert len({(TWINS / name / "tokenizer.json").read_text() for name in ("mlm", *PAIR)}) == 1
    for name, result in zip(PAIR, results, strict=True):
        assert (TWINS / name / "model.safetensors").stat().st_size < 8e6
        assert f"{result['tokens_seen']:,} tokens seen" in (TWINS / name / "README.md").read_text()


@pytest.mark.slow
def test_the_discriminator_tells_replaced_words():
    """One token of each sentence becomes one of another: its logit rises mostly (seen: 87 %), and it is often
    the most suspicious of its sentence (43 %)."""
    whole = open_in_transformers("ElectraForPreTraining", TWINS / "discriminator")
    ids = SentenceEncoder.from_pretrained(TWINS / "discriminator").tokenize(
        read_sentences(ROOT / "data/sample/test.tsv")
    )
    rises, found = [], []
    for sentence, other in pairwise(ids):
        place = len(sentence) // 2
        replaced = [*sentence[:place], other[len(other) // 2], *sentence[place + 1 :]]
        if replaced != sentence:
            with torch.inference_mode():
                before, after = (whole(torch.tensor([x])).logits[0] for x in (sentence, replaced))
            rises.append((after[place] > before[place]).item())
            found.append(after.argmax().item() == place)
    assert sum(rises) > 0.75 * len(rises) and sum(found) > 0.3 * len(found)


def documented(heading: str) -> dict[str, list[float]]:
    """The table under a heading of docs/objectives.md: name of a column -> its numbers, layer 0 first (the rows of
    random vectors, which have no layer, left out)."""
    text = (ROOT / "docs/objectives.md").read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    layers = [row for row in rows if row[0].isdigit()]
    return {name: [float(row[place]) for row in layers] for place, name in enumerate(names)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_frozen_scores_are_those_of_the_documentation(name, real_data):
    examples = read_examples(get_task("stsb", data_root=str(real_data)), "test")
    model = SentenceEncoder.from_pretrained(TWINS / name, pooling="mean")
    token_ids = [model.tokenize(column) for column in examples.texts]
    u, v = (model.embed_token_ids(ids, all_layers=True) for ids in token_ids)  # (L + 1, N, D) each
    found = [100 * spearman(layer, examples.labels) for layer in cosines(u, v)]
    assert found == pytest.approx(documented("Without fine-tuning")[COLUMNS[name]], abs=0.006)


@pytest.mark.slow
def test_cka_with_the_twin_is_that_of_the_documentation(real_data, tmp_path):
    mlm, *others = (str(TWINS / name) for name in CLASSES)
    also = [part for other in others[1:] for part in ("--also", other, mlm)]
    where = ["--data-root", str(real_data), "--split", "dev", "--json", str(tmp_path / "cka.json")]
    cka.main([others[0], mlm, *also, *where])
    pairs = json.loads((tmp_path / "cka.json").read_text())["pairs"]
    for pair, name in zip(pairs, list(CLASSES)[1:], strict=True):
        assert pair["by_layer"] == pytest.approx(
            documented("Linear CKA with the MLM twin")[COLUMNS[name]], abs=0.006
        )


def test_one_checkpoint_alone_has_nothing_to_be_compared_with():
    with pytest.raises(InputError, match=r"only one checkpoint \(x\): name another one to compare it with"):
        cka.main(["x"])


def test_cka_without_arguments_compares_the_twins(tmp_path, capsys):
    cka.main(["--json", str(tmp_path / "cka.json")])
    assert "A = discriminator and B = mlm" in capsys.readouterr().out
    (pair,) = json.loads((tmp_path / "cka.json").read_text())["pairs"]
    assert len(pair["by_layer"]) == 9 and all(0 < value < 1 for value in pair["by_layer"])
