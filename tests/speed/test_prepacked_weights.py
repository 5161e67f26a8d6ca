"""Prepacked weights: embeddings are the same, never those of former weights, and the model is as it was."""

import copy
import gc
import pickle
import random
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model
from torch import nn
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters

sys.path.append(str(Path(__file__).parent.parent / "models"))
from random_configs import RANDOM_CONFIGS

from tmft.bert import SelfAttention
from tmft.embedding.modules import Dense
from tmft.models.families import config_from_dict, random_encoder
from tmft.speed import prepacked_weights as prepacking
from tmft.speed.prepacked_weights import PREPACKED_MODELS, fast_encoding, uses_onednn


@pytest.fixture
def products(monkeypatch):
    """Prepack for any number of tokens; return the list of the names of the methods that were called."""
    names, call = [], prepacking.PrepackedMethod.__call__
    monkeypatch.setattr(prepacking, "MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(
        prepacking.PrepackedMethod, "__call__", lambda method, x: names.append(method.name) or call(method, x)
    )
    return names


@pytest.fixture
def layouts(monkeypatch):
    """Return a list to which each weight is added that is converted to oneDNN's layout."""
    weights, reorder = [], torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda weight: weights.append(weight) or reorder(weight)
    )
    return weights


def count_products(model):
    """The number of linear layers of an encoder, where queries, keys and values count as one."""
    parts = [*model.encoder.modules()]
    return sum(isinstance(part, nn.Linear) for part in parts) - 2 * sum(
        isinstance(part, SelfAttention) for part in parts
    )


def encode_without(model):
    """Encode with the methods of torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepacking, "MIN_MULTIPLICATIONS", 10**12)
        return model.encode(SENTENCES)


needs_onednn = pytest.mark.skipif(
    not uses_onednn(torch.zeros(1, 1)),
    reason="products of oneDNN are not float32 on this CPU, or there are none",
)


@needs_onednn
def test_embeddings_are_the_same_in_each_call_and_the_model_is_as_it_was(products):
    model = tiny_model()
    before = [{*vars(part)} for part in model.modules()]
    embeddings = [model.encode(SENTENCES) for _ in range(3)]
    assert len(products) == 3 * count_products(model)  # one batch
    np.testing.assert_allclose(embeddings[0], encode_without(model), rtol=0, atol=1e-6)
    assert np.array_equal(embeddings[0], embeddings[1]) and np.array_equal(embeddings[0], embeddings[2])
    assert [{*vars(part)} for part in model.modules()] == before


@needs_onednn
def test_from_the_second_call_on_weights_are_prepacked_once(products, layouts, monkeypatch):
    """A single call keeps no copies, as it may be the only one; with many tokens it makes each only once."""
    encoder, counts = tiny_model().encoder, []
    ids, mask = torch.arange(5, 19)[None], torch.ones(1, 14, dtype=torch.int64)
    for min_tokens in (10**9, 0):
        monkeypatch.setattr(prepacking, "MIN_TOKENS", min_tokens)
        PREPACKED_MODELS.clear()
        for call in range(3):
            layouts.clear()
            with torch.inference_mode(), fast_encoding(encoder, ids.numel(), 24):
                encoder(ids, mask)
                encoder(ids, mask)
            methods = PREPACKED_MODELS[encoder].methods
            counts.append(len(layouts) / len(methods))
            assert [method.prepacked is not None for method in methods] == [call > 0] * len(methods)
    assert counts == [2, 1, 0, 1, 1, 0]


def replace_weights(model, new):
    """Give each linear layer new parameters. new: a function of the present tensor."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            for name, tensor in [*module.named_parameters(recurse=False)]:
                setattr(module, name, nn.Parameter(new(tensor.detach())))


def step(model, optimizer, **options):
    """Take a step of an optimizer with lr 0.1."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer(model.parameters(), lr=0.1, **options).step()
    model.zero_grad()


def change_in_place(model):
    for parameter in model.parameters():
        parameter.mul_(1.5)


def change_data(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.5)


def set_data(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5


def change_arrays(model):
    for parameter in model.parameters():
        parameter.detach().numpy()[...] *= 1.5


def round_weights(model):
    """Convert to 16 bits and back: the address may be the old one."""
    model.bfloat16()
    model.float()


def load_weights(model, **options):
    model.load_state_dict({name: 1.5 * tensor for name, tensor in model.state_dict().items()}, **options)


def replace_layers(model):
    model.encoder.layers = copy.deepcopy(model.encoder.layers)
    change_in_place(model.encoder.layers)


def replace_query(model):
    attention = model.encoder.layers[0].attention
    attention.query = copy.deepcopy(attention.query)
    change_in_place(attention.query)


def share_numbers(model):
    """Replace a weight by one with the same address, and change one number until it has the same version."""
    up = model.encoder.layers[0].feed_forward.up
    version = up.weight._version
    up.weight = nn.Parameter(up.weight.data)
    while up.weight._version < version:
        up.weight[3, 5].add_(9)


def exchange_projections(model):
    attention = model.encoder.layers[0].attention
    attention.project = lambda hidden: SelfAttention.project(attention, hidden)[::-1]


def negate_key(model):
    key = model.encoder.layers[0].attention.key
    key.forward = lambda x: -nn.functional.linear(x, key.weight, key.bias)


CHANGES = {
    "in place": change_in_place,
    "in place in inference mode": torch.inference_mode()(change_in_place),
    "one number": lambda model: model.encoder.layers[0].feed_forward.up.weight[3, 5].add_(9),
    "data in place": change_data,
    "data replaced": set_data,
    "numpy": change_arrays,
    "parameters replaced": lambda model: replace_weights(model, lambda tensor: tensor * 1.5),
    "layers replaced": replace_layers,
    "a linear layer replaced": replace_query,
    "layers removed": lambda model: model.encoder.keep_layers([1]),
    "load_state_dict": load_weights,
    "load_state_dict, assigned": lambda model: load_weights(model, assign=True),
    "vector_to_parameters": lambda model: vector_to_parameters(
        parameters_to_vector(model.parameters()) * 1.5, model.parameters()
    ),
    "to bfloat16": lambda model: model.encoder.bfloat16(),
    "to bfloat16 and back": round_weights,
    "a step of SGD": lambda model: step(model, torch.optim.SGD),
    "a step of AdamW": lambda model: step(model.train(), torch.optim.AdamW, foreach=True),
    "a step of AdamW, fused": lambda model: step(model, torch.optim.AdamW, fused=True),
    "pruned": lambda model: prune.random_unstructured(
        model.encoder.layers[0].attention.value, "weight", amount=0.5
    ),
    "a hook": lambda model: model.encoder.layers[0].attention.query.register_forward_hook(
        lambda module, inputs, output: -output
    ),
    "a parameter with the same numbers": share_numbers,
    "a method of the caller": negate_key,
    "a method of an attention": exchange_projections,
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_of_weights_between_two_calls_is_missed(change, products):
    model = tiny_model()
    model.head_modules.append(Dense(24, 24))
    for _ in range(2):
        before = model.encode(SENTENCES)
    torch.manual_seed(0)
    with torch.no_grad():
        CHANGES[change](model)
    changed = model.encode(SENTENCES)
    assert np.abs(changed - before).max() > 1e-4
    tolerance = 0.05 if model.dtype == torch.bfloat16 else 1e-5
    np.testing.assert_allclose(changed, encode_without(model), rtol=0, atol=tolerance)
    PREPACKED_MODELS.clear()
    assert np.array_equal(model.encode(SENTENCES), changed)  # as a model that was never used before


@pytest.mark.parametrize("name", [name for name, _ in tiny_model().encoder.named_parameters()])
@pytest.mark.parametrize("change", ["in place", "data in place", "a step of AdamW, fused"])
def test_no_change_of_a_single_tensor_is_missed(name, change, products):
    model = tiny_model()
    for _ in range(2):
        before = model.encode(SENTENCES)
    module, _, parameter = name.rpartition(".")
    module = model.encoder.get_submodule(module)
    with torch.no_grad():
        only = nn.ParameterDict({parameter: getattr(module, parameter)})
        CHANGES[change](only)
    changed = model.encode(SENTENCES)
    if not name.endswith("key.bias"):  # which the softmax cancels
        assert not np.array_equal(changed, before)
    PREPACKED_MODELS.clear()
    assert np.array_equal(model.encode(SENTENCES), changed)


@needs_onednn
def test_weights_made_in_inference_mode_have_no_counter_and_are_not_kept(products, layouts):
    with torch.inference_mode():
        model = tiny_model()
    for _ in range(3):
        layouts.clear()
        before = model.encode(SENTENCES)
        assert len(layouts) == count_products(model)
    with torch.inference_mode():
        model.encoder.layers[0].feed_forward.up.weight[3, 5] += 9
    assert np.abs(model.encode(SENTENCES) - before).max() > 1e-4


@needs_onednn
def test_copies_of_weights_are_freed_with_the_model_and_by_an_optimizer(products):
    models = [tiny_model() for _ in range(2)]
    methods = []
    for model in models:
        for _ in range(2):
            model.encode(SENTENCES)
        methods += [weakref.ref(method) for method in PREPACKED_MODELS[model.encoder].methods]
    assert all(method().prepacked for method in methods)
    del model, models[0]
    gc.collect()
    half = len(methods) // 2
    assert [method() is None for method in methods] == [True] * half + [False] * half
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1).step()
    assert all(method() is None for method in methods)


def pickled(module):
    return pickle.loads(pickle.dumps(module))


@needs_onednn
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("while_it_encodes", [False, True])
def test_a_copy_has_weights_of_its_own(copied, while_it_encodes, products):
    """A copy is an ordinary model, which can be changed. Another thread may copy while one encodes."""
    model, copies = tiny_model(), []
    plain = [model.encode(SENTENCES) for _ in range(2)][-1]
    if while_it_encodes:
        norm = model.encoder.embeddings.norm

        @torch.inference_mode(False)
        def copy_layers(_norm, _inputs):
            assert "project" in vars(model.encoder.layers[0].attention)
            copies.append(copied(model.encoder.layers))

        hook = norm.register_forward_pre_hook(copy_layers)
        model.encode(SENTENCES)
        hook.remove()
    other = copied(model)
    if while_it_encodes:
        [other.encoder.layers] = copies
    with torch.no_grad():
        change_in_place(other)
    assert np.array_equal(model.encode(SENTENCES), plain)
    assert np.abs(other.encode(SENTENCES) - plain).max() > 0.01
    np.testing.assert_allclose(other.encode(SENTENCES), encode_without(other), rtol=0, atol=1e-5)
    assert len(PREPACKED_MODELS[other.encoder].methods) == count_products(other)


@needs_onednn
@pytest.mark.parametrize("model_type", sorted(RANDOM_CONFIGS))
def test_hidden_states_of_every_family_are_the_same(model_type, products):
    config = config_from_dict(RANDOM_CONFIGS[model_type](random.Random(0)))
    encoder = random_encoder(config).eval()
    ids, mask = torch.arange(5, 19)[None], torch.ones(1, 14, dtype=torch.int64)
    with torch.inference_mode():
        plain = encoder(ids, mask)
        for _ in range(2):
            with fast_encoding(encoder, ids.numel(), 24):
                torch.testing.assert_close(encoder(ids, mask), plain, rtol=0, atol=1e-5)
        encoder.bfloat16()  # torch's kernel computes the attention of a sentence alone
        for _ in range(2):
            with fast_encoding(encoder, ids.numel(), 24):
                assert (encoder(ids, mask) - plain).norm() < 0.05 * plain.norm()


@needs_onednn
def test_weights_that_are_too_large_are_not_copied(products, monkeypatch):
    model = tiny_model()
    size = sum(part.weight.nbytes for part in model.encoder.modules() if isinstance(part, nn.Linear))
    monkeypatch.setattr(prepacking, "MAX_PREPACKED_BYTES", size - 1)
    model.encode(SENTENCES)
    assert not products
    PREPACKED_MODELS.clear()
    monkeypatch.setattr(prepacking, "MAX_PREPACKED_BYTES", size)
    model.encode(SENTENCES)
    assert products


@needs_onednn
def test_nothing_is_prepacked_under_autocast_nor_where_the_caller_set_a_forward_or_a_hook(products):
    model = tiny_model()
    plain = model.encode(SENTENCES)
    products.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.encode(SENTENCES)
    assert not products and 0 < np.abs(rounded - plain).max() < 0.1
    attention, seen = model.encoder.layers[0].attention, []
    attention.output.forward = forward = lambda x: torch.zeros(*x.shape[:-1], attention.output.out_features)
    attention.key.register_forward_pre_hook(lambda module, inputs: seen.append(module))
    model.encode(SENTENCES)
    assert attention.output.forward is forward and seen == [attention.key]
    assert len(products) == count_products(model)  # queries and values, but neither keys nor outputs


@needs_onednn
def test_the_model_is_restored_after_an_error(products):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    x = torch.randn(3, 4)
    plain = model(x)
    with pytest.raises(ZeroDivisionError), fast_encoding(model, 1, 4):
        torch.testing.assert_close(model(x), plain)
        1 / 0  # noqa: B018
    assert products and not any("forward" in vars(part) for part in model)


@needs_onednn
def test_two_blocks_that_overlap_leave_the_model_as_it_was(products):
    """The first one ends while the second one is still active, as with two threads."""
    model = tiny_model()
    before = [{*vars(part)} for part in model.modules()]
    first, second = (fast_encoding(model.encoder, 1, 24) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "forward" in vars(model.encoder.layers[0].feed_forward.up)
    second.__exit__(None, None, None)
    assert [{*vars(part)} for part in model.modules()] == before


@needs_onednn
def test_two_threads_encode_with_one_model(products):
    model, found = tiny_model(), {}
    plain = model.encode(SENTENCES)

    def work(number):
        found[number] = [model.encode(SENTENCES) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert all(np.array_equal(vectors, plain) for vectors in [*found[0], *found[1]])


def test_onednn_is_used_only_where_it_was_measured_to_be_faster(monkeypatch):
    assert not uses_onednn(torch.zeros(1, 1, dtype=torch.float16)) and not uses_onednn(
        torch.zeros(1, 1, device="meta")
    )
    monkeypatch.setattr(prepacking, "onednn_is_exact", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not uses_onednn(torch.zeros(1, 1)) and not uses_onednn(torch.zeros(1, 1, dtype=torch.bfloat16))
