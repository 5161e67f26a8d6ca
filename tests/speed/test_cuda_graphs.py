"""Steps as CUDA graphs, without a GPU: a stand-in computes a captured pass again when it is replayed.

So everything but CUDA itself is tested here: which batches are replayed, that weights and random numbers are
those of steps as usual, to the last bit, and what happens if a pass cannot be captured or computes something
else. tests/bench/gpu.py tests the same on a GPU.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model, training_task

from tmft.data import Examples
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.packing import ROWS_MULTIPLE, pack
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.train_run import assemble_training
from tmft.speed.cuda_graphs import MAX_SHAPES, CudaGraphs, GraphedEmbedder
from tmft.students.quantized_weights import QuantizedWeights
from tmft.tasks import TASKS
from tmft.training.multitask import make_training_tasks
from tmft.training_task import PackedEmbedder

NUM_PAIRS = 10
TRAIN = Examples(
    (SENTENCES * 2, [*SENTENCES[2:], *SENTENCES[:2]] * 2), [float(n % 6) for n in range(NUM_PAIRS)]
)
RECIPE = Recipe(epochs=3, batch_size=4, lr=1e-3, precision="fp32")
BATCH = pack([[1, 5, 6, 2], [1, 7, 2]])


class Counted:
    """Captures a function on a CPU, where the replay calls it again, and counts captures and replays."""

    def __init__(self):
        self.captures = self.replays = 0

    def __call__(self, function):
        self.captures += 1
        function()

        def replay() -> None:
            self.replays += 1
            function()

        return replay


class EmbedderAsOnGPU(PackedEmbedder):
    """Pads rows as on a GPU, and embeds with graphs, in which a stand-in captures; None: without graphs."""

    def __init__(self, model, capture=None):
        super().__init__(model)
        self.graphs = CudaGraphs(model, capture) if capture else model

    def __call__(self, batch):
        return self.graphs(pack(batch.token_ids, rows_multiple=ROWS_MULTIPLE))


def train(embed, recipe=RECIPE, callbacks=()):
    """Return the losses and the weights of a short training, with dropout."""
    torch.manual_seed(0)
    task = training_task(TASKS["stsb"], CosineMSE(), TRAIN, TRAIN)
    losses = [epoch.loss for epoch in fit(embed.model, task, recipe, 0, embed, callbacks)]
    assert len(set(losses)) == recipe.epochs
    return losses, [weight.detach().clone() for weight in embed.model.parameters()]


def assert_same(one, other):
    assert one[0] == other[0]
    assert all(map(torch.equal, one[1], other[1]))


@pytest.mark.parametrize(("precision", "is_quantized"), [("fp32", False), ("bf16", False), ("fp32", True)])
def test_replayed_steps_give_the_same_bits_as_usual_ones(precision, is_quantized):
    recipe, results = replace(RECIPE, precision=precision), []
    for capture in (None, Counted()):
        embed = EmbedderAsOnGPU(tiny_model(untrained=True), capture)
        callbacks = [QuantizedWeights(embed.model, "int4")] if is_quantized else []
        results.append(train(embed, recipe=recipe, callbacks=callbacks))
    assert_same(*results)
    # Nine steps with batches of 4, 4 and 2 pairs: two shapes, each of which is captured the second time. A
    # capture is of two passes, and replayed once to compare.
    assert (capture.captures, capture.replays) == (4, 4 + 2 * (9 - 2))


def fails(function):
    raise RuntimeError("operation not permitted when stream is capturing\nmore lines")


def does_nothing(function):
    function()
    return lambda: None


@pytest.mark.parametrize(
    "capture, reason",
    [
        (fails, "operation not permitted"),
        (does_nothing, "their embeddings and gradients differ from the usual"),
    ],
)
def test_what_cannot_be_captured_is_computed_as_usual_and_said_once(capture, reason, caplog):
    usual = train(EmbedderAsOnGPU(tiny_model(untrained=True)))
    embed = EmbedderAsOnGPU(tiny_model(untrained=True), capture)
    assert_same(train(embed), usual)
    [message] = [record.message for record in caplog.records]
    assert message.startswith(f"training steps are not replayed as CUDA graphs: {reason}")
    assert "\n" not in message and not embed.graphs.passes


def test_weights_that_move_in_memory_are_captured_again():
    capture = Counted()
    graphs = CudaGraphs(tiny_model().train(), capture)
    for _ in range(3):
        graphs(BATCH)
    assert capture.captures == 2
    for change in (
        lambda weight: setattr(weight, "data", weight.data * 2),
        lambda weight: weight.requires_grad_(False),
    ):
        change(next(graphs.model.encoder.layers[0].parameters()))
        before = capture.captures
        for _ in range(3):
            graphs(BATCH)
        assert capture.captures == before + 2
        torch.manual_seed(1)
        embeddings = graphs(BATCH)
        torch.manual_seed(1)
        assert torch.equal(embeddings, graphs.model(BATCH))


def test_without_gradients_or_training_or_weights_to_train_a_batch_is_embedded_as_usual():
    capture = Counted()
    graphs = CudaGraphs(tiny_model(), capture)
    for _ in range(3):
        graphs(BATCH)  # in evaluation mode
    graphs.model.train()
    with torch.no_grad():
        for _ in range(3):
            graphs(BATCH)
    graphs.model.requires_grad_(False)
    for _ in range(3):
        assert not graphs(BATCH).requires_grad
    assert capture.captures == 0


def test_a_batch_is_backpropagated_before_the_next_one():
    graphs = CudaGraphs(tiny_model().train(), Counted())
    for _ in range(3):
        first = graphs(BATCH)
    graphs(BATCH)
    with pytest.raises(RuntimeError, match="before the next one is embedded"):
        first.sum().backward()


def test_gradients_of_two_batches_add_up_and_unused_weights_have_none():
    model = tiny_model().train()
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
    graphs = CudaGraphs(model, Counted())
    for _ in range(2):
        graphs(BATCH)
    for count in (1, 2):
        torch.manual_seed(count)
        graphs(BATCH).sum().backward()
    kept = [weight.grad.clone() for weight in model.encoder.parameters()]
    assert model.unused.grad is None and all(graphs.passes.values())
    model.zero_grad()
    for count in (1, 2):
        torch.manual_seed(count)
        model(BATCH).sum().backward()
    for grad, weight in zip(kept, model.encoder.parameters(), strict=True):
        torch.testing.assert_close(grad, weight.grad)


def test_only_so_many_shapes_are_captured_and_no_large_batch(monkeypatch):
    for limit, expected in ((BATCH.input_ids.numel(), 2), (BATCH.input_ids.numel() - 1, 0)):
        monkeypatch.setattr("tmft.speed.cuda_graphs.MAX_POSITIONS", limit)
        capture = Counted()
        graphs = CudaGraphs(tiny_model().train(), capture)
        for _ in range(3):
            graphs(BATCH)
        assert capture.captures == expected
    monkeypatch.undo()
    for num_sentences in range(1, MAX_SHAPES + 3):
        for _ in range(2):
            graphs(pack([[1, 5, 2]] * num_sentences))
    assert capture.captures == 2 * MAX_SHAPES


def test_the_rows_of_a_batch_are_rounded_up_and_the_embeddings_stay_as_they_are():
    model = tiny_model()
    token_ids = model.tokenize(SENTENCES * 5)
    plain, rounded = pack(token_ids, 16), pack(token_ids, 16, rows_multiple=4)
    assert len(plain.input_ids) % 4 and len(rounded.input_ids) % 4 == 0
    assert rounded.num_sentences == plain.num_sentences
    np.testing.assert_allclose(model(rounded).detach(), model(plain).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes", [{}, {"cuda_graphs": False}, {"mini_batch_size": 2}, {"gradient_surgery": "log"}]
)
def test_what_keeps_gradients_for_longer_has_no_graphs(changes):
    model = tiny_model()
    tasks = make_training_tasks(TASKS["stsb"], model.dimensions, {"": {"train": TRAIN, "dev": TRAIN}})
    _, embed, _ = assemble_training(model, tasks, FineTuningRecipe(**changes))
    embed = getattr(embed, "embed", embed) if "mini_batch_size" in changes else embed
    assert isinstance(embed, GraphedEmbedder) == (not changes)


def test_autocast_keeps_no_weights_of_a_captured_pass_and_goes_on_keeping_others(caplog):
    seen = []

    def capture(function):
        seen.append(torch.is_autocast_cache_enabled())
        return Counted()(function)

    graphs = CudaGraphs(tiny_model().train(), capture)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            graphs(BATCH)
        assert torch.is_autocast_cache_enabled()
    assert seen == [False, False] and not caplog.records
