"""Every layer and the first dimensions at once: the losses against runs of each alone, and the cut model."""

from dataclasses import replace

import pytest
import torch
from conftest import (
    SENTENCES,
    WITHOUT_DROPOUT,
    embed_columns,
    fit_with_options,
    tiny_model,
    training_task,
)

from tmft.data import Examples
from tmft.errors import InputError
from tmft.loop import fit
from tmft.loss import CosineMSE
from tmft.losses.heads import SoftmaxLoss
from tmft.losses.nested import ALL_LAYERS, AllLayersEmbedder, NestedLoss, SubEmbeddingSlices
from tmft.metrics import METRICS
from tmft.packing import pack
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.train_run import assemble_training
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.distillation import EmbeddingDistillation, distillation_loss
from tmft.tasks import TASKS
from tmft.training_free.postprocessing import keep_first_dimensions
from tmft.training_task import Batch, Embedder, PackedEmbedder

SIZES = (3, 8)


def nested(model, dims=SIZES, every_layer=True) -> tuple[SubEmbeddingSlices, Embedder]:
    """The sub-embeddings of a model, and what embeds sentences as all of them."""
    parts = SubEmbeddingSlices(model.dimensions, dims, len(model.encoder.layers) if every_layer else None)
    return parts, AllLayersEmbedder(model) if every_layer else PackedEmbedder(model)


def embedded(embed: Embedder, ids: list[list[int]]) -> torch.Tensor:
    """The concatenated sub-embeddings, with a graph."""
    return embed(Batch(ids, texts_per_example=1, target=torch.zeros(len(ids)), training_loss=torch.sum))


def pairs_of(model) -> tuple[list[list[int]], torch.Tensor]:
    return model.tokenize(SENTENCES[:4]), torch.tensor([0.1, 0.9])


@torch.no_grad()
def test_views_are_the_embeddings_of_a_model_that_was_cut(tmp_path):
    model = tiny_model()
    (parts, embed), ids = nested(model), model.tokenize(SENTENCES)
    views = parts.split(embedded(embed, ids))
    assert len(views) == 5 * 3
    assert [*views][:2] == ["layer 0 first 3", "layer 0 first 8"] and [*views][-1] == ""
    model.save_pretrained(tmp_path / "m")
    for layer in range(5):
        cut = SentenceEncoder.from_pretrained(tmp_path / "m", layer=layer)
        alone = cut.encode(SENTENCES, convert_to_tensor=True)
        whole = views[f"layer {layer}" if layer < 4 else ""]
        torch.testing.assert_close(whole, alone, atol=2e-6, rtol=0)
        for size in SIZES:
            torch.testing.assert_close(views[f"layer {layer} first {size}"], whole[:, :size], atol=0, rtol=0)
    only_sizes, plain = nested(model, every_layer=False)
    assert list(only_sizes.split(embedded(plain, ids))) == ["first 3", "first 8", ""]
    assert plain.width == 24 and embed.width == 5 * 24


def test_the_loss_of_all_is_the_mean_of_those_of_each():
    model = tiny_model()
    ids, target = pairs_of(model)
    (parts, embed), objective = nested(model), CosineMSE()
    embeddings = embedded(embed, ids).chunk(2)
    found = NestedLoss(objective, parts)(*embeddings, target)
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


def test_widening_trains_as_many_dimensions_of_a_layer_as_its_depth_allows():
    model = tiny_model()  # 4 layers, 24 dimensions
    ids, target = pairs_of(model)
    parts, objective = SubEmbeddingSlices(24, num_layers=4, widening=True), CosineMSE()
    embeddings = embedded(AllLayersEmbedder(model), ids)
    views = parts.split(embeddings)
    assert list(views) == ["layer 1 first 6", "layer 2 first 12", "layer 3 first 18", ""]
    states = model.encoder.hidden_states(*pack(ids).inputs)
    for layer, view in enumerate(views.values(), 1):
        torch.testing.assert_close(view, model.pool(states[layer], pack(ids))[:, : 6 * layer])
    each = [objective(*view.chunk(2), target) for view in views.values()]
    found = NestedLoss(objective, parts)(*embeddings.chunk(2), target)
    assert found.item() == pytest.approx(sum(each).item() / 4, abs=1e-6)


def test_first_dimensions_learn_the_cosines_of_a_wider_teacher():
    u, t = torch.randn(5, 4), torch.randn(5, 9)
    a, b = torch.nn.functional.normalize(u), torch.nn.functional.normalize(t)
    among = ((a @ a.T - b @ b.T) ** 2).mean().item()
    assert distillation_loss(u, t).item() == pytest.approx(5 * among, abs=1e-6)
    objective = EmbeddingDistillation(9, replace(TASKS["sample"], objective_args={}))
    assert objective(u, t).item() == pytest.approx(5 * among, abs=1e-5)


@pytest.fixture
def make_task():
    others = ["a dog", "the man eats", "a park", "the guitar plays", "cats", "two men"]
    examples = Examples(([*SENTENCES, "a cat"], others), [n / 10 for n in range(6)])
    return lambda objective: training_task(TASKS["sample"], objective, examples, examples)


@pytest.mark.parametrize("all_layers", ALL_LAYERS)
def test_a_run_trains_every_layer_and_reports_each(all_layers, make_task):
    def losses_of_cut(model) -> list[float]:
        examples = make_task(CosineMSE()).examples["train"]
        parts, embed = nested(model, ())
        views = [parts.split(embed.embed_no_grad(model.tokenize(column))) for column in examples.texts]
        target = torch.tensor(examples.labels)
        return [CosineMSE()(views[0][name], views[1][name], target).item() for name in views[0]]

    model = tiny_model()
    before = losses_of_cut(model)
    is_widening = all_layers == "widening"
    dims = None if is_widening else (8,)
    recipe = FineTuningRecipe(
        epochs=30, batch_size=3, lr=3e-3, all_layers=all_layers, matryoshka_dims=dims, precision="fp32"
    )
    epochs = fit_with_options(model, make_task(CosineMSE()), recipe)
    [*_, (epoch, after)] = ((epoch, losses_of_cut(model)) for epoch in epochs)
    assert all(a < b for a, b in zip(after, before, strict=True)) and sum(after) < 0.8 * sum(before)
    assert after[-1] < 0.8 * before[-1]
    views = epoch.dev["sub_embeddings"]
    if is_widening:
        assert list(views) == ["layer 1 first 6", "layer 2 first 12", "layer 3 first 18"]
        return
    assert list(views)[:2] == ["layer 0 first 8", "layer 0"] and list(views)[-1] == "layer 4 first 8"
    assert len(views) == 9 and epoch.dev.keys() == {"pairs", "spearman", "pearson", "sub_embeddings"}


def test_scores_of_sub_embeddings_are_those_of_a_model_that_was_cut(make_task, tmp_path):
    model, task = tiny_model(), make_task(CosineMSE())
    task.examples["test"] = task.examples["dev"]
    recipe = FineTuningRecipe(
        epochs=1, batch_size=3, all_layers="mean", matryoshka_dims=(8,), precision="fp32"
    )
    task, embed, callbacks = assemble_training(model, {"": task}, recipe)
    [epoch] = fit(model, task, recipe, 0, embed, callbacks)
    test = task.evaluate(embed, "test", epoch.dev).metrics
    assert test["sub_embeddings"] == epoch.dev["sub_embeddings"]
    model.save_pretrained(tmp_path / "m")
    for layer, size, name in ((2, 24, "layer 2"), (4, 8, "layer 4 first 8"), (0, 8, "layer 0 first 8")):
        cut = SentenceEncoder.from_pretrained(tmp_path / "m", layer=layer)
        keep_first_dimensions(cut, size)
        u, v = embed_columns(cut, task.examples["test"].texts)
        assert u.shape == (6, size)
        alone = METRICS["spearman"](CosineMSE().predict(u, v), task.examples["test"].labels)
        assert test["sub_embeddings"][name] == pytest.approx(alone["spearman"], abs=1e-6)


def test_with_a_gradient_cache_the_gradient_is_the_same(make_task):
    def trained(mini_batch_size) -> torch.Tensor:
        torch.manual_seed(0)
        model = tiny_model(**WITHOUT_DROPOUT)
        recipe = FineTuningRecipe(epochs=1, batch_size=6, precision="fp32", mini_batch_size=mini_batch_size)
        recipe = replace(recipe, all_layers="mean", matryoshka_dims=SIZES)
        list(fit_with_options(model, make_task(CosineMSE()), recipe))
        return torch.from_numpy(model.encode(SENTENCES))

    torch.testing.assert_close(trained(2), trained(None), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"matryoshka_dims": (3, 3)}, "matryoshka_dims 3 3: give increasing numbers"),
        ({"matryoshka_dims": (24,)}, "matryoshka_dims 24: the model has 24 dimensions, give fewer"),
        (
            {"all_layers": "widening", "matryoshka_dims": (8,)},
            "all_layers widening: .*: leave out matryoshka_",
        ),
        ({"all_layers": "mean", "freeze_layers": 1}, "all_layers and freeze_layers: give only one"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, make_task):
    with pytest.raises(InputError, match=message):
        list(fit_with_options(tiny_model(), make_task(CosineMSE()), FineTuningRecipe(**options)))


def test_a_head_that_needs_all_dimensions_refuses_fewer(make_task):
    for option, value in (("matryoshka_dims", (8,)), ("all_layers", "widening")):
        with pytest.raises(InputError, match=f"{option}: the head of this task needs all dimensions"):
            recipe = FineTuningRecipe(**{option: value})
            list(fit_with_options(tiny_model(), make_task(SoftmaxLoss(24, TASKS["sicke"])), recipe))


@pytest.mark.parametrize("all_layers", ALL_LAYERS)
def test_embeddings_alone_are_one_layer(all_layers, make_task):
    recipe = FineTuningRecipe(epochs=1, batch_size=3, all_layers=all_layers, precision="fp32")
    [epoch] = fit_with_options(tiny_model(num_hidden_layers=0), make_task(CosineMSE()), recipe)
    assert epoch.dev.keys() == {"pairs", "spearman", "pearson"}


def test_a_mean_of_layers_cannot_be_trained_at_all_layers():
    model = tiny_model()
    model.layers = (1, 2)
    with pytest.raises(InputError, match="all_layers: the model averages several layers"):
        nested(model)
