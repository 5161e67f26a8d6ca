"""An evaluator needs nothing of a model but a function that encodes."""

import json

import pytest
import torch
from conftest import SENTENCES, tiny_model
from torch import nn

import evaluate
from tmft import SentenceEncoder
from tmft.data import Examples
from tmft.evaluation.evaluators import EVALUATORS, Evaluation, evaluate_similarity
from tmft.evaluation.isotropy import alignment, iso_score, mean_cosine, uniformity
from tmft.losses.heads import SoftmaxLoss
from tmft.metrics import cosines, spearman
from tmft.tasks import Task
from tmft.training_free.training_free import TrainingFreeConfig, TrainingFreeEncoders

WORDS = {"cat": [1.0, 0.0], "dog": [4.0, 3.0], "car": [0.0, 2.0], "bus": [-3.0, 4.0], "sun": [-1.0, 0.0]}
# Cosines with cat: dog 0.8, car 0, bus -0.6, sun -1.
OTHERS = ["dog", "car", "bus", "sun"]


def encode(words: list[str]) -> torch.Tensor:
    """Look up the vector of each word, without any model."""
    return torch.tensor([WORDS[word] for word in words])


def with_cat(labels: list[float], **parts: slice) -> Examples:
    return Examples((["cat"] * len(labels), OTHERS[: len(labels)]), labels, parts)


def test_similarity_of_a_plain_function_on_words():
    """Ranks 1 2 3 4 and 1 2 4 3: 1 - 6 x 2 / (4 x 15) = 0.8."""
    read_split = {"test": with_cat([4, 3, 1, 2])}.__getitem__
    result = EVALUATORS["similarity"](encode, Task("x", columns=("word1", "word2")), read_split)
    assert result["pairs"] == 4 and result["spearman"] == pytest.approx(0.8)


def test_the_given_split_is_read_and_its_subsets_are_scored():
    data = {"dev": with_cat([1, 2, 3, 4]), "test": with_cat([4, 3, 1, 2], a=slice(0, 2), b=slice(2, 4))}
    assert evaluate_similarity(encode, Task("x"), data.__getitem__, "dev")["spearman"] == pytest.approx(-1)
    result = evaluate_similarity(encode, Task("x"), data.__getitem__, "test")
    assert result["subsets"] == pytest.approx({"a": 1.0, "b": -1.0}) and result["subset_mean"] == 0.0


# ----------------------------------------------------------------------------------------------- thresholds

CLASSES = Task("x", classes={"0": 0, "1": 1}, objective="cosine_bce", metric="f1")
DEV, TEST = with_cat([1, 0, 0, 0]), with_cat([1, 1, 0, 0])  # best cuts: 0.4 for dev, -0.3 for test


def reader(seen: list[str], **splits: Examples):
    def read_split(split: str) -> Examples:
        seen.append(split)
        return splits[split]

    return read_split


@pytest.mark.parametrize("split", ["test", "train"])
def test_a_threshold_is_chosen_on_dev_and_kept_for_the_split_that_is_reported(split):
    seen = []
    read_split = reader(seen, dev=DEV, **{split: TEST})
    result = evaluate_similarity(encode, CLASSES, read_split, split)
    assert seen == ["dev", split]
    assert result["threshold"] == pytest.approx(0.4)
    assert result["f1"] == pytest.approx(2 / 3) and result["accuracy"] == 0.75  # not 1, as with -0.3


def test_dev_itself_is_scored_at_its_own_threshold():
    seen = []
    result = evaluate_similarity(encode, CLASSES, reader(seen, dev=DEV), "dev")
    assert seen == ["dev"] and result["f1"] == 1.0 and result["threshold"] == pytest.approx(0.4)


def test_a_given_threshold_is_used_and_dev_is_not_read():
    seen = []
    result = evaluate_similarity(encode, CLASSES, reader(seen, test=TEST), threshold=-0.3)
    assert seen == ["test"] and result["f1"] == 1.0 and result["threshold"] == -0.3


# ----------------------------------------------------------------------------------------------- objectives


def test_a_trained_head_predicts():
    """Class 1 if the first component of the second text is above 0: dog."""
    task = Task("x", classes={"0": 0, "1": 1}, objective="softmax", metric="f1_macro")
    head = SoftmaxLoss(2, task)
    nn.init.zeros_(head.head.bias)
    head.head.weight.data = torch.zeros(2, 6)
    head.head.weight.data[1, 2] = 1.0  # of u, v and |u - v|, two components each: the first of v
    read_split = {"test": with_cat([1, 0, 0, 1])}.__getitem__
    result = evaluate_similarity(encode, task, read_split, objective=head)
    assert result["accuracy"] == 0.75 and result["f1_macro"] == pytest.approx((2 / 3 + 4 / 5) / 2)


@pytest.mark.parametrize("k", [1, 3])
def test_an_objective_gets_an_embedding_of_each_text(k):
    class FirstComponent(nn.Module):
        def predict(self, *embeddings):
            assert len(embeddings) == k
            return embeddings[-1][:, 0].numpy()

    examples = Examples((["sun"] * 4, ["bus"] * 4, OTHERS)[-k:], [4, 3, 1, 2])  # components 4, 0, -3, -1
    result = evaluate_similarity(
        encode, Task("x"), {"test": examples}.__getitem__, objective=FirstComponent()
    )
    assert result["spearman"] == pytest.approx(1)


# ------------------------------------------------------------------------------ texts that are estimated from

SPLITS = {split: Examples(([split],), [0]) for split in ("train", "dev", "test")}


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize(
    ("task_type", "files", "train"),
    [
        ("similarity", "stsb/{split}.tsv", False),  # its train split is not used
        ("similarity", "sts12/*.tsv", False),
        ("clustering", "clustering/tweet.tsv", False),
        ("clustering", "mine/{split}.tsv", False),
        ("classification", "senteval/sst2/{split}.tsv", True),
        ("classification", "senteval/mr.tsv", False),  # its only file
        ("relatedness", "sick/{split}.tsv", True),
    ],
)
def test_estimates_use_train_if_a_classifier_is_fitted_else_the_scored_texts(task_type, files, train, split):
    evaluation = Evaluation(Task(files, task_type=task_type), SPLITS.__getitem__, split)
    assert evaluation.unlabeled_texts == ["train" if train else split]


# ----------------------------------------------------------------------------------------------- every layer


@pytest.fixture
def truncated(tiny_folder) -> list[SentenceEncoder]:
    """The model of tiny_folder with 0, 1, ... 4 layers."""
    return [SentenceEncoder.from_pretrained(tiny_folder, layer=layer) for layer in range(5)]


def layer_encoders(model: SentenceEncoder, layers: list[int]):
    """{layer: function that embeds sentences by the mean of this hidden state}"""
    configs = {layer: TrainingFreeConfig(layers=(layer,)) for layer in layers}
    return TrainingFreeEncoders(model, configs).encoders([])


@pytest.mark.parametrize("layers", [[0, 1, 2, 3, 4], [4], [0, 2], [2]])
def test_each_layer_equals_the_truncated_model(layers, truncated):
    for layer, encode in layer_encoders(truncated[-1], layers).items():
        expected = torch.from_numpy(truncated[layer].encode(SENTENCES))
        torch.testing.assert_close(encode(SENTENCES), expected, rtol=0, atol=1e-6)


def test_embeddings_are_in_the_order_of_the_sentences_however_often_they_occur():
    model = tiny_model()
    encode = layer_encoders(model, [0, 1, 2, 3, 4])[3]
    assert encode([]).shape == (0, model.dimensions)
    first = encode(SENTENCES[:3])
    again = encode([SENTENCES[4], SENTENCES[1], SENTENCES[1], SENTENCES[0]])
    assert torch.equal(again[1:], first[[1, 1, 0]])
    torch.testing.assert_close(again[0], encode(SENTENCES)[4], rtol=0, atol=0)
    assert encode([]).shape == (0, model.dimensions)


@pytest.mark.parametrize("layers", [[0, 1, 2, 3, 4], [2]])
def test_each_sentence_is_encoded_once_for_all_layers_and_calls(layers, monkeypatch):
    model, ids, layer_calls = tiny_model(), [], []
    embed, run_layer = model.embed_token_ids, model.encoder.layers[3].forward

    def counting(token_ids, forward=None, **how):
        ids.extend(map(tuple, token_ids))
        return embed(token_ids, forward, **how)

    def counting_layer(*inputs, **how):
        layer_calls.append(1)
        return run_layer(*inputs, **how)

    monkeypatch.setattr(model, "embed_token_ids", counting)
    monkeypatch.setattr(model.encoder.layers[3], "forward", counting_layer)
    for encode in layer_encoders(model, layers).values():
        encode(SENTENCES[:3] + SENTENCES[:2])
        encode(SENTENCES[2:])
    assert sorted(ids) == sorted(map(tuple, model.tokenize(SENTENCES)))
    assert len(layer_calls) == (2 if 4 in layers else 0)  # layers above the highest one are not computed


# ------------------------------------------------------------------------------------------------- isotropy

PAIRS = [(a, b, 5 - n % 6) for n, (a, b) in enumerate((a, b) for a in SENTENCES for b in SENTENCES if a != b)]
PAIRS.append((SENTENCES[0], SENTENCES[0], 4))  # 0.8 of the range: not above it
NAMES = ["mean_cosine", "iso_score", "alignment", "uniformity", "printed_alignment", "printed_uniformity"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pairs").mkdir()
    lines = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{score}" for a, b, score in PAIRS)]
    (tmp_path / "pairs/test.tsv").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "pairs")


def expected(model: SentenceEncoder) -> dict[str, float]:
    """The measures of a hidden state of distinct sentences, and of similar pairs, whose score is 5 of 5."""
    first, second, scores = map(list, zip(*PAIRS, strict=True))
    u, v = (torch.from_numpy(model.encode(side)) for side in (first, second))
    x = torch.from_numpy(model.encode(list(dict.fromkeys(first + second))))
    close = torch.tensor(scores) > 4
    assert 0 < close.sum() < len(scores) / 2
    u_close, v_close = u[close], v[close]
    measures = mean_cosine(x), iso_score(x), alignment(u_close, v_close), uniformity(x)
    measures += -alignment(u_close, v_close, power=1), uniformity(torch.cat([u, v]), power=1)
    return {"spearman": spearman(cosines(u, v), scores)} | dict(zip(NAMES, measures, strict=True))


def test_the_command_prints_scores_and_isotropy_of_every_layer(
    tiny_folder, truncated, folder, tmp_path, capsys
):
    line = [str(tiny_folder), "--layer", "all", "--isotropy", "--data", folder]
    evaluate.main([*line, "--json", str(tmp_path / "scores.json")])
    layers = json.loads((tmp_path / "scores.json").read_text())["layers"]
    assert list(layers) == list("01234")
    for layer, model in enumerate(truncated):
        expected_values = expected(model)
        result = {name: layers[str(layer)]["pairs"][name] for name in expected_values}
        assert result == pytest.approx(expected_values, rel=1e-5, abs=1e-6)
    printed = capsys.readouterr().out.partition("\npairs\n")[2].splitlines()
    header = (
        "layer spearman pearson mean cosine iso score alignment uniformity "
        "printed alignment printed uniformity bar: spearman"
    )
    assert printed[0].split() == header.split()
    assert printed[3].split()[:2] == ["2", f"{expected(truncated[2])['spearman']:.4f}"]
