"""Gradient caching: the gradient of the whole batch, with the same dropout twice."""

import pytest
import torch
from conftest import tiny_model

from tmft.datasets.task_lookup import get_task
from tmft.losses.multiple_negatives import MultipleNegativesRanking
from tmft.packing import pack
from tmft.training.gradient_cache import GradientCache
from tmft.training_task import Batch, PackedEmbedder

LINES = [
    "a man plays\tthe man plays guitar\ta dog",
    "the cat eats\ta cat eats\tmusic",
    "two dogs\ttwo dogs in the park\ta cat",
    "a man plays\ta man\tthe park",
    "music\tguitar music\tdog",
    "is it\tit is\tnot a man",
]


def make_batch(model, num_texts, objective):
    token_ids = model.tokenize([line.split("\t")[j] for j in range(num_texts) for line in LINES])
    return Batch(token_ids, num_texts, torch.arange(6), objective)


def backward(cache, batch):
    """One backward pass through the cache -> the loss."""
    loss = batch.training_loss(*cache(batch).chunk(batch.texts_per_example), batch.target)
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("mini_batch_size", [1, 2, 5, 6])
@pytest.mark.parametrize("num_texts", [2, 3])
def test_mini_batches_give_the_gradient_of_the_batch(num_texts, mini_batch_size):
    model = tiny_model().eval()
    task = get_task("nli", objective_args={"temperature": 0.2})
    batch = make_batch(model, num_texts, MultipleNegativesRanking(24, task))
    loss = batch.training_loss(*model(pack(batch.token_ids)).chunk(num_texts), batch.target)
    expected = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    found = backward(GradientCache(PackedEmbedder(model), mini_batch_size), batch)
    torch.testing.assert_close(found, loss.detach())
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        if gradient is not None:
            largest = gradient.abs().max().item()
            torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=1e-5 * max(largest, 1e-2))


def test_the_gradients_of_the_tasks_before_are_kept():
    model = tiny_model().eval()
    batch = make_batch(model, 2, MultipleNegativesRanking(24, get_task("quora-pairs")))
    cache = GradientCache(PackedEmbedder(model), 2)
    backward(cache, batch)
    once = {n: w.grad.clone() for n, w in model.named_parameters() if w.grad is not None}
    backward(cache, batch)
    for name, gradient in once.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, 2 * gradient)


def test_dropout_is_the_same_in_both_passes_and_other_in_the_next_batch():
    """The second pass gives the embeddings of the first."""
    model = tiny_model(hidden_dropout_prob=0.3).train()
    outputs = []
    model.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    batch = make_batch(model, 2, MultipleNegativesRanking(24, get_task("quora-pairs")))
    cache = GradientCache(PackedEmbedder(model), 2)
    torch.manual_seed(0)
    backward(cache, batch)
    first, again = outputs[:3], outputs[3:]
    assert all(a.equal(b) for a, b in zip(first, again, strict=True)) and not first[0].equal(first[1])
    after = torch.rand(1)
    torch.manual_seed(0)
    model(pack(batch.token_ids[:4]))
    assert not torch.rand(1).equal(after)
    backward(cache, batch)
    assert not outputs[-3].equal(first[0])
