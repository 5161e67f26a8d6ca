"""Every layer and the first dimensions at once: the losses against runs of each alone, and the cut model."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import ROOT, SENTENCES, only, tiny_model

import evaluate
import train
from tmft.data import TASKS, Examples
from tmft.embedding.saved import keep_dimensions
from tmft.errors import InputError
from tmft.losses.cosine import CosineMSE
from tmft.losses.distillation import Distill, distill
from tmft.losses.heads import Softmax
from tmft.losses.nested import EVERY_LAYER, Nested
from tmft.metrics import METRICS
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.loop import Recipe, fit
from tmft.training.multitask import score_all

SIZES = (3, 8)


def nested(model, every_layer="sum", matryoshka=SIZES, seed=0) -> Nested:
    return Nested(model, None, [], every_layer, matryoshka, seed)


def pairs_of(model) -> tuple[list[list[int]], torch.Tensor]:
    return model.tokenize(SENTENCES[:4]), torch.tensor([0.1, 0.9])


@torch.no_grad()
def test_views_are_the_embeddings_of_a_model_that_was_cut(tmp_path):
    model = tiny_model()
    embed, ids = nested(model), model.tokenize(SENTENCES)
    views = embed.views(embed(ids))
    assert (
        len(views) == 5 * 3
        and list(views)[-1] == ""
        and list(views)[:2] == ["layer 0 first 3", "layer 0 first 8"]
    )
    model.save_pretrained(tmp_path / "m")
    for layer in range(5):
        alone = torch.from_numpy(
            SentenceEncoder.from_pretrained(tmp_path / "m", layer=layer).encode(SENTENCES)
        )
        whole = views[f"layer {layer}" if layer < 4 else ""]
        torch.testing.assert_close(whole, alone, atol=2e-6, rtol=0)
        for size in SIZES:
            torch.testing.assert_close(views[f"layer {layer} first {size}"], whole[:, :size], atol=0, rtol=0)
    only_sizes = nested(model, None)
    assert list(only_sizes.views(only_sizes(ids))) == ["first 3", "first 8", ""]
    assert only_sizes.dimensions == 24 and embed.dimensions == 5 * 24


def test_the_loss_of_all_is_the_mean_of_those_of_each():
    model = tiny_model()
    ids, target = pairs_of(model)
    embed, objective = nested(model), CosineMSE()
    embeddings = embed(ids).chunk(2)
    found = embed.loss(objective, *embeddings, target)
    model.zero_grad()
    found.backward()
    gradients = {
        name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
    }

    model.zero_grad()
    losses = []
    states = model.encoder.hidden_states(*pack(ids).inputs)
    for hidden in states:
        for size in (*SIZES, 24):
            u, v = model.pool(hidden, pack(ids))[:, :size].chunk(2)
            losses.append(objective(u, v, target))
    expected = sum(losses) / len(losses)
    expected.backward()
    assert len(losses) == 15 and found.item() == pytest.approx(expected.item(), abs=1e-6)
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(gradients[name], weight.grad, atol=1e-6, rtol=1e-4)


def test_drawn_is_the_whole_and_another_view_which_changes():
    model = tiny_model()
    ids, target = pairs_of(model)
    embed, objective = nested(model, "drawn", ()), CosineMSE()
    embeddings = embed(ids).chunk(2)
    each = [
        objective(*view, target).item()
        for view in zip(*(embed.views(u).values() for u in embeddings), strict=True)
    ]
    found = {round(embed.loss(objective, *embeddings, target).item(), 5) for _ in range(60)}
    assert found == {round((each[-1] + other) / 2, 5) for other in each[:-1]}
    again = [nested(model, "drawn", (), seed=7).loss(objective, *embeddings, target).item() for _ in range(3)]
    assert len(set(again)) == 1  # a seed decides


def test_taught_learns_the_labels_in_the_last_layer_alone():
    model = tiny_model()
    ids, target = pairs_of(model)
    embed, objective = nested(model, "taught", ()), CosineMSE()
    embeddings = embed(ids)
    *others, whole = embed.views(embeddings).values()
    expected = objective(*whole.chunk(2), target) + sum(distill(u, whole, 0.0) for u in others) / 4
    found = embed.loss(objective, *embeddings.chunk(2), target)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    leaf = embeddings.detach().requires_grad_()
    embed.loss(objective, *leaf.chunk(2), target).backward()
    alone = embeddings.detach()[:, -24:].requires_grad_()
    objective(*alone.chunk(2), target).backward()
    torch.testing.assert_close(leaf.grad[:, -24:], alone.grad)  # the teacher does not follow its students
    assert leaf.grad[:, :24].abs().sum() > 0


def test_first_dimensions_learn_the_cosines_of_a_wider_teacher():
    u, t = torch.randn(5, 4), torch.randn(5, 9)
    a, b = torch.nn.functional.normalize(u), torch.nn.functional.normalize(t)
    among = ((a @ a.T - b @ b.T) ** 2).mean().item()
    assert distill(u, t, 3.0).item() == pytest.approx(3 * among, abs=1e-6)
    assert distill(u, t, 0.0).item() == pytest.approx(5 * among, abs=1e-6)
    objective = Distill(9, replace(TASKS["sample"], settings={}))
    assert objective(u, t).item() == pytest.approx(5 * among, abs=1e-5)


@pytest.fixture
def lessons():
    others = ["a dog", "the man eats", "a park", "the guitar plays", "cats", "two men"]
    examples = Examples(([*SENTENCES, "a cat"], others), [n / 10 for n in range(6)])
    return lambda objective: only(TASKS["sample"], objective, examples, examples)


@pytest.mark.parametrize("every_layer", EVERY_LAYER)
def test_a_run_trains_every_layer_and_tells_of_each(every_layer, lessons):
    def losses_of_cut(model) -> list[float]:
        examples = lessons(CosineMSE())[""].examples["train"]
        embed = nested(model, "sum", ())
        views = [embed.views(embed.read(model.tokenize(column))) for column in examples.texts]
        target = torch.tensor(examples.labels)
        return [CosineMSE()(views[0][name], views[1][name], target).item() for name in views[0]]

    model = tiny_model()
    before = losses_of_cut(model)
    recipe = Recipe(
        epochs=30, batch_size=3, lr=3e-3, every_layer=every_layer, matryoshka=(8,), precision="fp32"
    )
    [*_, (epoch, after)] = ((e, losses_of_cut(model)) for e in fit(model, lessons(CosineMSE()), recipe, 0))
    if every_layer != "taught":  # there only the last one sees the labels
        assert all(a < b for a, b in zip(after, before, strict=True)) and sum(after) < 0.8 * sum(before)
    assert after[-1] < 0.8 * before[-1]
    views = epoch.dev["views"]
    assert list(views)[:2] == ["layer 0 first 8", "layer 0"] and list(views)[-1] == "layer 4 first 8"
    assert len(views) == 9 and epoch.dev.keys() == {"spearman", "pearson", "views"}


def test_scores_of_views_are_those_of_a_model_that_was_cut(lessons, tmp_path):
    model, every = tiny_model(), lessons(CosineMSE())
    every[""].examples["test"] = every[""].examples["dev"]
    recipe = Recipe(epochs=1, batch_size=3, every_layer="sum", matryoshka=(8,), precision="fp32")
    [epoch] = fit(model, every, recipe, 0)
    test = score_all(model, every, "test", epoch.dev)
    assert test["views"] == epoch.dev["views"]
    model.save_pretrained(tmp_path / "m")
    for layer, size, name in ((2, 24, "layer 2"), (4, 8, "layer 4 first 8"), (0, 8, "layer 0 first 8")):
        cut = SentenceEncoder.from_pretrained(tmp_path / "m", layer=layer)
        keep_dimensions(cut, size)
        u, v = cut.embed_columns(every[""].examples["test"].texts)
        assert u.shape == (6, size)
        alone = METRICS["spearman"](CosineMSE().predict(u, v), every[""].examples["test"].labels)
        assert test["views"][name] == pytest.approx(alone["spearman"], abs=1e-6)


def test_in_chunks_the_gradient_is_the_same(lessons):
    def trained(chunk) -> torch.Tensor:
        torch.manual_seed(0)
        model = tiny_model()
        for module in model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
        recipe = Recipe(
            epochs=1, batch_size=6, every_layer="sum", matryoshka=SIZES, chunk=chunk, precision="fp32"
        )
        list(fit(model, lessons(CosineMSE()), recipe, 0))
        return torch.from_numpy(model.encode(SENTENCES))

    torch.testing.assert_close(trained(2), trained(None), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"matryoshka": (8, 3)}, "matryoshka 8 3: write numbers that rise, from 1 to 23"),
        ({"matryoshka": (0, 3)}, "from 1 to 23"),
        ({"matryoshka": (3, 3)}, "from 1 to 23"),
        ({"matryoshka": (24,)}, "from 1 to 23"),
        ({"every_layer": "sun"}, "did you mean sum"),
        ({"every_layer": "sum", "freeze": 1}, "every_layer and freeze"),
    ],
)
def test_what_does_not_go_is_refused(asked, said, lessons):
    with pytest.raises(InputError, match=said):
        list(fit(tiny_model(), lessons(CosineMSE()), Recipe(**asked), 0))


def test_a_head_that_reads_all_dimensions_refuses_fewer(lessons):
    task = replace(TASKS["sicke"])
    with pytest.raises(InputError, match="matryoshka: the head of this task reads all dimensions"):
        list(fit(tiny_model(), lessons(Softmax(24, task)), Recipe(matryoshka=(8,)), 0))


@pytest.mark.parametrize("every_layer", EVERY_LAYER)
def test_embeddings_alone_are_one_layer(every_layer, lessons):
    recipe = Recipe(epochs=1, batch_size=3, every_layer=every_layer, precision="fp32")
    [epoch] = fit(tiny_model(num_hidden_layers=0), lessons(CosineMSE()), recipe, 0)
    assert epoch.dev.keys() == {"spearman", "pearson"}


def test_a_mix_of_layers_has_no_every_layer():
    model = tiny_model()
    model.layers = (1, 2)
    with pytest.raises(InputError, match="every_layer and a mix of layers"):
        nested(model)


# ------------------------------------------------------------------------------------------------ commands

TWIN = str(ROOT / "data/twins/mlm")


@pytest.mark.slow
def test_one_run_opens_at_any_layer_and_any_dimensions(tmp_path, capsys):
    common = ["--ckpt", TWIN, "--layer", "3", "--task", "sample", "--lr", "3e-4", "--epochs", "2"]
    train.main([*common, "--every-layer", "sum", "--matryoshka", "16", "64", "--runs", str(tmp_path)])
    run = str(tmp_path / "mlm-sample-layer3-seed0")
    capsys.readouterr()
    evaluate.main(
        [run, "--task", "sample", "--layer", "1", "--dimensions", "16", "--save", str(tmp_path / "cut")]
    )
    asked = capsys.readouterr().out
    views = json.loads((tmp_path / "mlm-sample-layer3-seed0/result.json").read_text())["test"]["views"]
    assert f"{100 * views['layer 1 first 16']:.2f}" in asked
    assert "| layer 1 first 16 | " in (tmp_path / "mlm-sample-layer3-seed0/README.md").read_text()
    evaluate.main([str(tmp_path / "cut"), "--task", "sample"])
    assert capsys.readouterr().out.splitlines()[-1] == next(
        line for line in asked.splitlines() if line.lstrip().startswith("sample")
    )
