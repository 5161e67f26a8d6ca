"""Every family of the registry against transformers: hidden states, saved folders and training steps.

The checkpoints are random ones of the odd shapes in random_configs.py, written by transformers: without a
head or with any that the family has, so that names have and have not a prefix; in one file, in several, or in
a pytorch_model.bin of 16 bits with the names that norms had in old files. TMFT_CASES=100 in the environment
draws 100 shapes for each family instead of a few.
"""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    SENTENCES,
    assert_same_embeddings,
    fit_with_options,
    load_encoder,
    padded,
    training_task,
    vocabulary_folder,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_configs import LONGEST, RANDOM_CONFIGS
from safetensors.torch import load_file
from torch import nn

from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import Examples
from tmft.errors import InputError
from tmft.loss import CosineMSE
from tmft.models.families import FAMILIES, config_from_dict, parameter_counts, random_encoder
from tmft.packing import pack
from tmft.runs.run_config import FineTuningRecipe
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS

WITHOUT_REFERENCE = {"static", "new"}  # transformers has no such model; new is another name of gte
NAMES = sorted(FAMILIES.keys() - WITHOUT_REFERENCE)
CASES = int(os.environ.get("TMFT_CASES", "8"))
RANDOM = st.randoms(use_true_random=False)  # a random.Random whose choices hypothesis draws
# Names of modules that transformers applies to the last hidden state only; here each hidden state has it.
FINAL_NORMS = ("norm", "final_norm", "encoder.final_layer_norm")
DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout_rate",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
)
# Families for which transformers builds a tokenizer of one kind, whatever is in tokenizer.json; that of these
# tests is of another kind.
OWN_TOKENIZER = {"qwen2"}
LENGTHS = (3, 17, LONGEST, 5, 1, 12, 29)
OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
OLD_NAMES |= {"word_embeddings.weight": "word_embeddings._weight"}
HEADS = ("PreTraining", "MaskedLM", "CausalLM", "Seq2SeqLM", "SequenceClassification", "TokenClassification")


def random_reference(model_type: str, rng: random.Random, folder: Path, std: float = 0.3) -> nn.Module:
    """A model of transformers with a random shape and random weights, saved in a random form of files.

    Returns the encoder, in evaluation mode and without dropout.
    """
    import transformers

    content = RANDOM_CONFIGS[model_type](rng)
    config = transformers.AutoConfig.for_model(**content)
    for key in DROPOUTS:
        if hasattr(config, key):
            setattr(config, key, 0.0)
    torch.manual_seed(rng.randrange(10**6))
    bare = getattr(transformers, FAMILIES[model_type].transformers_class)
    model = rng.choice((lambda: bare(config), lambda: with_head(config, rng)))()
    for name, weight in model.named_parameters():
        nn.init.normal_(weight, mean=0.5 if weight.ndim == 1 and "norm" in name.lower() else 0.0, std=std)
        weight.data = weight.data.half().float()  # numbers of 16 bits, so that an old file may have them
    model.eval().save_pretrained(folder, max_shard_size=rng.choice(("5GB", "20KB")))
    if not isinstance(model, bare):
        model, info = bare.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        assert all(name.startswith("pooler") for name in info["missing_keys"])
    if rng.random() < 0.3:
        store_as_old_file(folder)
    return model.eval()


def with_head(config, rng: random.Random) -> nn.Module:
    """A model of transformers for this configuration with one of the heads that there are."""
    import transformers

    for head in rng.sample(HEADS, len(HEADS)):
        try:
            return getattr(transformers, f"AutoModelFor{head}").from_config(config)
        except ValueError:  # there is none of this kind
            continue
    raise AssertionError(f"no head for {config.model_type}")


def store_as_old_file(folder: Path) -> None:
    """Store the weights in a pytorch_model.bin of 16 bits, under the names and with the constants of once."""
    weights = {}
    for path in folder.glob("*.safetensors"):
        weights |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    old = {f"embeddings.{name}": torch.ones(9) for name in ("position_ids", "token_type_ids")}
    old["rotary_emb.inv_freq"] = torch.ones(5)
    for name, weight in weights.items():
        for new_name, old_name in OLD_NAMES.items():
            name = name.replace(new_name, old_name)
        old[name] = weight.half()
    torch.save(old, folder / "pytorch_model.bin")


def reference_states(model: nn.Module, sentences: list[list[int]]) -> list[list[torch.Tensor]]:
    """[s][n]: hidden state n of sentence s, (T, D), each with the final norm if the family has one."""
    modules = dict(model.named_modules())
    norm = next((modules[name] for name in FINAL_NORMS if name in modules), nn.Identity())
    states = []
    with torch.no_grad():
        for ids in sentences:
            inputs = torch.tensor([ids])
            output = model(inputs, attention_mask=torch.ones_like(inputs), output_hidden_states=True)
            before_norm = output.hidden_states[:-1]
            states.append([norm(hidden)[0] for hidden in before_norm] + [output.last_hidden_state[0]])
    return states


def random_sentences(config, rng: random.Random) -> list[list[int]]:
    """Token ids of sentences of many lengths; the padding token is in none of them."""
    ids = [id for id in range(2, config.vocab_size) if id != config.pad_token_id]
    return [[rng.choice(ids) for _ in range(length)] for length in LENGTHS]


def largest_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a part of the largest number of theirs, or of 1 if that is larger."""
    return ((ours - theirs).abs().max() / max(1.0, theirs.abs().max())).item()


def test_every_family_has_random_configurations():
    assert RANDOM_CONFIGS.keys() == FAMILIES.keys() - WITHOUT_REFERENCE


@pytest.mark.parametrize("model_type", NAMES)
@settings(max_examples=CASES, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(rng=RANDOM)
def test_every_hidden_state_is_that_of_transformers_alone_and_packed_in_short_and_in_long_rows(
    model_type, rng
):
    """So are those of a truncated model and, from all layers, the gradient of the word embeddings."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        model = random_reference(model_type, rng, Path(folder))
        encoder = load_encoder(Path(folder))
        sentences = random_sentences(encoder.config, rng)
        theirs = reference_states(model, sentences)
        layer = rng.randrange(max(FAMILIES[model_type].min_layers, 1), encoder.config.num_hidden_layers + 1)
        ids, mask = padded(sentences)
        truncated = load_encoder(Path(folder), layer)(
            ids, mask
        )  # is an earlier hidden state, to the last bit
        assert torch.equal(truncated, encoder.hidden_states(ids, mask)[layer])
        short = largest_difference_in_rows(encoder, sentences, theirs)
        gradient = largest_difference_of_gradients(encoder, model, sentences)
        # Now all rows are long; a sentence and a window can be in one block or in several.
        monkeypatch.setattr("tmft.speed.long_rows.LONG_ROW", 0)
        monkeypatch.setattr("tmft.speed.long_rows.LARGE_BLOCK", 16)
        monkeypatch.setattr("tmft.speed.long_rows.SMALL_BLOCK", 7)
        long = largest_difference_in_rows(encoder, sentences, theirs)
    assert max(short, long) < 1e-5, (short, long)
    assert gradient < 1e-3


def largest_difference_of_gradients(encoder, model: nn.Module, sentences: list[list[int]]) -> float:
    """Of the word embeddings, as a part of the largest number; the loss is a sum over all tokens."""
    ids, mask = padded(sentences)
    (model(ids, attention_mask=mask).last_hidden_state[mask.bool()] ** 3).sum().backward()
    rows = pack(sentences)
    (encoder(*rows.inputs)[rows.attention_mask > 0] ** 3).sum().backward()
    ours, theirs = encoder.embeddings.word.weight.grad, model.get_input_embeddings().weight.grad
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def largest_difference_in_rows(
    encoder: nn.Module, sentences: list[list[int]], theirs: list[list[torch.Tensor]]
) -> float:
    """The largest difference of any hidden state of the sentences, packed, padded, and two of them alone."""
    ids, mask = padded(sentences)
    rows = pack(sentences)
    with torch.inference_mode():
        in_padded, packed = encoder.hidden_states(ids, mask), encoder.hidden_states(*rows.inputs)
        one_row = {
            s: encoder.hidden_states(torch.tensor([sentences[s]]), torch.ones(1, len(sentences[s])).long())
            for s in (2, 4)
        }
    assert len(in_padded) == len(packed) == encoder.config.num_hidden_layers + 1 == len(theirs[0])
    worst = 0.0
    for s, sentence in enumerate(sentences):
        for n, expected in enumerate(theirs[s]):
            worst = max(worst, largest_difference(in_padded[n][s, : len(sentence)], expected))
            worst = max(worst, largest_difference(packed[n][rows.attention_mask == s + 1], expected))
            if s in one_row:
                worst = max(worst, largest_difference(one_row[s][n][0], expected))
    return worst


@pytest.mark.parametrize("model_type", NAMES)
def test_a_truncated_folder_is_the_same_model_in_transformers_and_sentence_transformers(model_type, tmp_path):
    import sentence_transformers
    import transformers

    family = FAMILIES[model_type]
    for seed in range(CASES // 4):
        folder = tmp_path / str(seed)
        rng = random.Random(f"{model_type} {seed}")
        random_reference(model_type, rng, folder)
        tokenizer = load_tokenizer(vocabulary_folder())
        full = load_encoder(folder)
        for layer in sorted({family.min_layers, 2, len(full.layers)} & set(range(len(full.layers) + 1))):
            encoder, saved = load_encoder(folder, layer), tmp_path / f"{seed}-{layer}"
            if layer > 1 and rng.random() < 0.5:  # layers out of turn
                kept = sorted(rng.sample(range(layer), rng.randrange(1, layer)))
                if encoder.config.first_layer_needed and 0 not in kept:
                    with pytest.raises(InputError, match="keep_layers must include layer 0: .*, add 0"):
                        encoder.keep_layers(kept)
                    kept = [0, *kept]
                encoder.keep_layers(kept)
            model = SentenceEncoder(encoder, tokenizer, max_length=LONGEST).eval()
            model.save_pretrained(saved)
            ours = model.encode(SENTENCES)
            np.testing.assert_array_equal(SentenceEncoder.from_pretrained(saved).encode(SENTENCES), ours)
            opened = sentence_transformers.SentenceTransformer(str(saved), device="cpu")
            if model_type in OWN_TOKENIZER:
                opened[0].processor = transformers.PreTrainedTokenizerFast.from_pretrained(saved)
            assert_same_embeddings(opened.encode(SENTENCES), ours, 1e-5)
            theirs, info = getattr(transformers, family.transformers_class).from_pretrained(
                saved, output_loading_info=True, dtype=torch.float32
            )
            missing = {name for name in info["missing_keys"] if not name.startswith("pooler")}
            assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"]
            assert parameter_counts(encoder.saved_form()[0])["stored"] == sum(
                weight.numel() for weight in load_encoder(saved).parameters()
            )
            again = load_encoder(saved).state_dict()
            assert all(torch.equal(again[name], weight) for name, weight in encoder.state_dict().items())


@pytest.mark.parametrize("model_type", NAMES)
def test_random_weights_begin_as_in_transformers(model_type, tmp_path):
    """Each weight has the mean, the standard deviation and, where it is cut off, the range."""
    import transformers

    family = FAMILIES[model_type]
    sizes = {"vocab_size": 500, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 320}
    sizes |= {"num_attention_heads": 32, "initializer_range": 0.05}
    content = {family.keys.get(name, name): size for name, size in sizes.items()} | {"pad_token_id": 0}
    config = transformers.AutoConfig.for_model(model_type, **content)
    torch.manual_seed(0)
    getattr(transformers, family.transformers_class)(config).save_pretrained(tmp_path)
    theirs = load_encoder(tmp_path)
    ours = random_encoder(theirs.config).state_dict()
    for name, expected in theirs.state_dict().items():
        tolerance = 5 * expected.numel() ** -0.5
        deviation = expected.std(correction=0).item()
        assert ours[name].std(correction=0).item() == pytest.approx(deviation, rel=tolerance), name
        mean = expected.mean().item()
        assert ours[name].mean().item() == pytest.approx(mean, abs=2 * tolerance * deviation), name
        if expected.numel() > 10_000:
            largest = expected.abs().max().item()
            assert ours[name].abs().max().item() == pytest.approx(largest, rel=0.35), name


def dropped(module: nn.Module, run: Callable) -> list[tuple[float, tuple]]:
    """The rates of dropout that are not 0, and the shapes that it is applied to, in order."""
    found = []
    for part in module.modules():
        if isinstance(part, nn.Dropout) and part.p > 0:
            part.register_forward_hook(
                lambda part, inputs, output: found.append((part.p, tuple(output.shape)))
            )
    run()
    return found


@pytest.mark.parametrize("model_type", NAMES)
def test_dropout_of_hidden_states_is_where_transformers_has_it(model_type):
    """The dropout of attention probabilities and relative positions is not compared: it differs there."""
    import transformers

    content = RANDOM_CONFIGS[model_type](random.Random(f"dropout {model_type}"))
    config = transformers.AutoConfig.for_model(**content)
    for key in DROPOUTS:
        if getattr(config, key, 0.0):
            setattr(config, key, 0.25)
    model = getattr(transformers, FAMILIES[model_type].transformers_class)(config).train()
    encoder = random_encoder(config_from_dict(config.to_dict())).train()
    ids = torch.randint(2, 40, (2, 6))
    theirs = dropped(model, lambda: model(ids, attention_mask=torch.ones_like(ids)))
    ours = dropped(encoder, lambda: encoder(ids, torch.ones_like(ids)))
    assert [call for call in ours if len(call[1]) == 3] == [call for call in theirs if len(call[1]) == 3]


TRAIN = Examples([["a man plays", "music", "the cat eats", "two dogs", "it is not"],
                  ["the man plays guitar", "guitar music", "a dog eats", "a cat", "not in the park"]],
                 [4.5, 3.0, 2.0, 1.0, 0.5])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model_type", NAMES)
def test_six_steps_have_the_losses_of_a_plain_padded_loop_with_transformers(model_type, tmp_path):
    import transformers

    family = FAMILIES[model_type]
    reference = random_reference(model_type, random.Random(f"{model_type} 0"), tmp_path, std=0.1)
    layer = max(family.min_layers, min(2, load_encoder(tmp_path).config.num_hidden_layers))
    truncated = SentenceEncoder(load_encoder(tmp_path, layer), load_tokenizer(vocabulary_folder()))
    truncated.save_pretrained(tmp_path / "truncated")

    model, losses = SentenceEncoder.from_pretrained(tmp_path / "truncated"), []
    objective = CosineMSE()
    objective.register_forward_hook(lambda module, inputs, loss: losses.append(loss.item()))
    recipe = FineTuningRecipe(epochs=2, batch_size=2, lr=1e-3, weight_decay=0.1, precision="fp32")
    task = training_task(TASKS["stsb"], objective, TRAIN, TRAIN)
    list(fit_with_options(model, task, recipe, seed=0))

    theirs = type(reference).from_pretrained(tmp_path / "truncated", dtype=torch.float32).train()
    groups = [
        [weight for weight in theirs.parameters() if (weight.ndim > 1) is decayed]
        for decayed in (True, False)
    ]
    optimizer = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1], "weight_decay": 0.0}], lr=1e-3
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, 6)
    generator = torch.Generator().manual_seed(0)
    order = [batch for _ in range(2) for batch in torch.randperm(5, generator=generator).split(2)]
    assert len(losses) == len(order) == 6
    for batch, ours in zip(order, losses, strict=True):
        ids, mask = padded(truncated.tokenize([side[i] for side in TRAIN.texts for i in batch]))
        hidden = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
        u, v = ((hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)).chunk(2)
        loss = nn.functional.mse_loss(torch.cosine_similarity(u, v), torch.tensor(TRAIN.labels)[batch] / 5)
        assert ours == pytest.approx(loss.item(), abs=1e-5)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
