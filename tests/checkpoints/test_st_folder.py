"""Folders of sentence-transformers: the same embeddings here as there, before and after we save them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from conftest import (
    SENTENCES,
    VOCABULARY,
    assert_same_embeddings,
    store_weights,
    stored_weights,
    tiny_model,
    training_task,
    vocabulary_folder,
)

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.st_folder import parse_pooling_config
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import Examples
from tmft.embedding.modules import Dense, LayerNorm, Normalize
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.prompts import Prompt
from tmft.embedding.token_weights import TokenWeights, make_token_weights
from tmft.errors import InputError
from tmft.evaluation.static_models import random_word_vectors, static_encoder, without_special_tokens
from tmft.losses.cosine import CosineMSE
from tmft.pooling import POOLINGS, Pooling
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS
from tmft.training.loop import Recipe, fit

TANH, IDENTITY = torch.nn.Tanh(), torch.nn.Identity()
# Name -> poolings, what follows them: the arguments of a Dense, "LayerNorm" or "Normalize".
# fmt: off
MODELS = {
    "mean":                 (["mean"], []),
    "cls":                  (["cls"], []),
    "max":                  (["max"], []),
    "mean_sqrt_len_tokens": (["mean_sqrt_len_tokens"], []),
    "weightedmean":         (["weightedmean"], []),
    "lasttoken":            (["lasttoken"], []),
    "max, mean":            (["max", "mean"], []),
    "mean, max":            (["mean", "max"], []),
    "four poolings":        (["cls", "mean", "weightedmean", "lasttoken"], []),
    "normalised":           (["mean"], ["Normalize"]),
    "dense":                (["mean"], [(24, 16, True, TANH)]),
    "dense, linear":        (["mean"], [(24, 32, False, IDENTITY)]),
    "two of dense":         (["cls", "max"], [(48, 16, False, TANH), (16, 8, True, IDENTITY)]),
    "layer norm":           (["lasttoken"], ["LayerNorm"]),
    "LaBSE":                (["cls"], [(24, 24, True, TANH), "Normalize"]),
    "EmbeddingGemma":       (["mean"], [(24, 48, False, IDENTITY), (48, 24, False, IDENTITY), "Normalize"]),
    "in another order":     (["mean"], ["Normalize", (24, 16, True, torch.nn.SiLU()), "Normalize"]),
    "all":                  (["max", "mean"], [(48, 24, True, TANH), "LayerNorm", "Normalize"]),
}
# fmt: on
IN_ORDER = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]  # of the old form
CASES = [(name, "new") for name in MODELS]
CASES += [
    (n, "old") for n, (poolings, _) in MODELS.items() if poolings == sorted(poolings, key=IN_ORDER.index)
]


def build(folder: Path, poolings: list[str], after: list = (), tiny=None, lower_case=False, **settings):
    """Save a model of sentence-transformers with its own classes; after: as in MODELS."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as kinds

    (tiny or tiny_model()).save_pretrained(folder / "tiny")
    torch.manual_seed(1)
    modules = [kinds.Transformer(str(folder / "tiny"), do_lower_case=lower_case)]
    modules.append(kinds.Pooling(24, pooling_mode=tuple(poolings)))
    for entry in after:
        if entry == "Normalize":
            modules.append(kinds.Normalize())
        elif entry == "LayerNorm":
            modules.append(kinds.LayerNorm(24))
            torch.nn.init.normal_(modules[-1].norm.weight)
            torch.nn.init.normal_(modules[-1].norm.bias)
        else:
            width, out, bias, activation = entry
            modules.append(kinds.Dense(width, out, bias, activation))
    model = SentenceTransformer(modules=modules, device="cpu", **settings)
    model.save_pretrained(str(folder / "theirs"))
    return folder / "theirs"


def in_the_old_form(folder: Path) -> None:
    """1_Pooling/config.json as versions before 5.3 wrote it: a key for each pooling."""
    path = folder / "1_Pooling/config.json"
    poolings = json.loads(path.read_text())["pooling_mode"]
    poolings = [poolings] if isinstance(poolings, str) else poolings
    content = {"word_embedding_dimension": 24, "include_prompt": True}
    content |= {
        row.sentence_transformers_key: name in poolings
        for name, row in POOLINGS.items()
        if row.sentence_transformers_key
    }
    path.write_text(json.dumps(content))


def their_embeddings(folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)


@pytest.fixture(scope="module", params=CASES, ids=": ".join)
def theirs(request, tmp_path_factory) -> tuple[Path, np.ndarray]:
    """-> the folder of a model of sentence-transformers, its embeddings there"""
    name, form = request.param
    folder = build(tmp_path_factory.mktemp("model"), *MODELS[name])
    if form == "old":
        in_the_old_form(folder)
    return folder, their_embeddings(folder)


@pytest.mark.slow
def test_a_folder_gives_the_embeddings_of_sentence_transformers_also_after_saving(theirs, tmp_path):
    folder, expected = theirs
    model = SentenceEncoder.from_pretrained(folder)
    embeddings = model.encode(SENTENCES)
    assert_same_embeddings(embeddings, expected)
    assert model.dimensions == expected.shape[1]
    model.save_pretrained(tmp_path)
    np.testing.assert_array_equal(SentenceEncoder.from_pretrained(tmp_path).encode(SENTENCES), embeddings)
    assert_same_embeddings(their_embeddings(tmp_path), expected)


@pytest.mark.slow
@pytest.mark.parametrize("saved_by", ["them", "us"])
def test_the_default_prompt_is_put_before_each_sentence(saved_by, tmp_path):
    prompts = {"prompts": {"query": "a dog ", "other": "music "}, "default_prompt_name": "query"}
    folder = build(tmp_path, ["mean"], **prompts)
    model = SentenceEncoder.from_pretrained(folder)
    assert model.prompt == "a dog "
    if saved_by == "us":
        model.save_pretrained(folder := tmp_path / "ours")
        model = SentenceEncoder.from_pretrained(folder)
    assert_same_embeddings(model.encode(SENTENCES), their_embeddings(folder))


@pytest.mark.slow
@pytest.mark.parametrize("saved_by", ["them", "us"])
def test_text_is_lower_cased_where_the_folder_says_so(saved_by, tmp_path):
    """By a tokenizer that leaves it as it is."""
    tiny = tiny_model()
    tiny.tokenizer = load_tokenizer(vocabulary_folder(do_lower_case=False))
    folder = build(tmp_path, ["mean"], tiny=tiny, lower_case=True)
    model = SentenceEncoder.from_pretrained(folder)
    if saved_by == "us":
        model.save_pretrained(folder := tmp_path / "ours")
        model = SentenceEncoder.from_pretrained(folder)
    assert model.tokenize(["A MAN"]) == model.tokenize(["a man"]) != tiny.tokenize(["A MAN"])
    assert_same_embeddings(model.encode(SENTENCES), their_embeddings(folder))


@pytest.mark.slow
def test_the_length_limit_of_the_folder_is_kept(tmp_path):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(build(tmp_path, ["mean"])), device="cpu")
    theirs.max_seq_length = 6
    theirs.save_pretrained(str(tmp_path / "short"))
    model = SentenceEncoder.from_pretrained(tmp_path / "short")
    assert model.max_length == 6
    assert_same_embeddings(model.encode(SENTENCES), theirs.encode(SENTENCES))


# ------------------------------------------------------------------------------- what tmft cannot run


def add_module(folder: Path, kind: str, path: str, **settings) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": path, "type": f"sentence_transformers.models.{kind}"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / path).mkdir(exist_ok=True)
    (folder / path / "config.json").write_text(json.dumps(settings))


DENSE = {"in_features": 24, "out_features": 24}
CANNOT = {
    "unknown": ("CNN", "2_CNN", {}, r"modules.json has a CNN in '2_CNN'"),
    "residual": ("Dense", "2_Dense", DENSE | {"use_residual": True}, r"2_Dense is a Dense with a residual"),
    "of tokens": (
        "Normalize",
        "2_N",
        {"module_input_name": "token_embeddings"},
        r"2_N is a Normalize .* tokens",
    ),
    "no weights": ("Dense", "2_Dense", DENSE, r"no weights in .*2_Dense: expected one of model.safetensors"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_a_module_that_tmft_cannot_run_is_one_line(name, tiny_folder):
    *module, settings, message = CANNOT[name]
    add_module(tiny_folder, *module, **settings)
    with pytest.raises(InputError, match=message) as error:
        SentenceEncoder.from_pretrained(tiny_folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["unknown", "residual", "of tokens"])
def test_the_error_names_a_remedy(name, tiny_folder):
    *module, settings, _ = CANNOT[name]
    add_module(tiny_folder, *module, **settings)
    with pytest.raises(InputError) as error:
        SentenceEncoder.from_pretrained(tiny_folder)
    assert "name a pooling" in str(error.value)
    assert "--pooling" in error.value.as_cli_message()


@pytest.mark.parametrize("name", CANNOT)
def test_a_named_pooling_is_used_without_modules_after_it(name, tiny_folder):
    expected = SentenceEncoder.from_pretrained(tiny_folder).encode(SENTENCES)
    *module, settings, _ = CANNOT[name]
    add_module(tiny_folder, *module, **settings)
    model = SentenceEncoder.from_pretrained(tiny_folder, pooling="mean")
    np.testing.assert_array_equal(model.encode(SENTENCES), expected)


def test_a_named_pooling_is_used_without_supported_modules_too(tmp_path):
    model = tiny_model()
    expected = model.encode(SENTENCES)
    model.head_modules = torch.nn.Sequential(Dense(24, 8), Normalize())
    model.save_pretrained(tmp_path)
    np.testing.assert_array_equal(
        SentenceEncoder.from_pretrained(tmp_path, pooling="mean").encode(SENTENCES), expected
    )


def test_a_pooling_without_the_prompt_is_not_supported(tiny_folder):
    pooling = {"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": False}
    (tiny_folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    SentenceEncoder.from_pretrained(tiny_folder)  # there is no prompt
    prompt = {"prompts": {"q": "music "}, "default_prompt_name": "q"}
    (tiny_folder / "config_sentence_transformers.json").write_text(json.dumps(prompt))
    with pytest.raises(InputError, match="config.json cannot be read .include_prompt is false, but"):
        SentenceEncoder.from_pretrained(tiny_folder)


# ------------------------------------------------------------------------------------- what it says, by hand


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({}, None),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["mean", "max"]}, "mean+max"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "max+mean"),  # their order
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "max", "pooling_mode_mean_tokens": True}, "max"),
    ],
)
def test_the_pooling_is_read_in_both_forms(content, name):
    assert parse_pooling_config(content, has_prompts=True) == name


def test_the_pooling_is_read_from_the_folder_that_modules_json_names(tiny_folder):
    modules = json.loads((tiny_folder / "modules.json").read_text())
    modules[1]["path"] = "5_Pool"
    (tiny_folder / "modules.json").write_text(json.dumps(modules))
    (tiny_folder / "5_Pool").mkdir()
    (tiny_folder / "5_Pool/config.json").write_text('{"pooling_mode": "cls"}')
    assert SentenceEncoder.from_pretrained(tiny_folder).pooling == "cls"
    assert "5_Pool/config.json" in ModelFolder(tiny_folder).file_names()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tmft.json", {"prompts": {"a": {"a": 1}}}, "tmft.json cannot be read .a is .*, not a text"),
        (
            "tmft.json",
            {"format": 2},
            "tmft.json cannot be read .its format is 2, this version",
        ),
        ("tmft.json", {"pooling": ["mean"]}, "pooling is .*, not a text"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": ["mean"] * 9999},
            "of too long a name",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode": 5},
            "pooling_mode is 5, not a name",
        ),
        ("1_Pooling/config.json", {"pooling_mode": {"a": 1}}, "pooling_mode is .*, not a name"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", 5]}, "pooling_mode is .*, not a name"),
        ("tmft.json", {"layer_mix": "9" * 5000}, "layer 9+.*: write a number"),
        ("config_sentence_transformers.json", {"prompts": "a"}, "prompts is 'a', not an object"),
        ("config_sentence_transformers.json", {"default_prompt_name": []}, "default_prompt_name is"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"a": 1}, "default_prompt_name": "a"},
            "a is 1, not a text",
        ),
    ],
)
def test_a_value_of_another_kind_is_one_line(name, content, message, tiny_folder):
    (tiny_folder / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        SentenceEncoder.from_pretrained(tiny_folder)


@pytest.mark.parametrize("width", [8, 23, 25, 48])
@pytest.mark.parametrize("kind", ["Dense", "LayerNorm"])
def test_a_module_of_another_width_is_refused_when_the_model_is_loaded(kind, width, tmp_path):
    model = tiny_model()
    module = Dense(width, 8) if kind == "Dense" else LayerNorm(width)
    model.head_modules = torch.nn.Sequential(Normalize(), module)
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"has a {kind} for embeddings of {width} dimensions, but gets 24"):
        SentenceEncoder.from_pretrained(tmp_path)
    assert SentenceEncoder.from_pretrained(tmp_path, pooling="mean").dimensions == 24


def test_a_dense_with_a_huge_config_takes_no_memory(tiny_folder):
    add_module(tiny_folder, "Dense", "2_Dense", in_features=10**6, out_features=10**7)
    store_weights(tiny_folder / "2_Dense", {"linear.weight": torch.ones(8, 24), "linear.bias": torch.ones(8)})
    with pytest.raises(InputError, match="2_Dense is not a complete Dense"):
        SentenceEncoder.from_pretrained(tiny_folder)


def test_no_file_outside_the_folder_is_requested(tiny_folder):
    add_module(tiny_folder, "Dense", "../elsewhere")
    with pytest.raises(InputError, match="a Dense is in '../elsewhere', not in a folder directly below"):
        ModelFolder(tiny_folder).file_names()


def test_a_folder_without_a_pooling_uses_the_mean(tiny_folder):
    (tiny_folder / "1_Pooling/config.json").unlink()
    (tiny_folder / "modules.json").unlink()
    assert SentenceEncoder.from_pretrained(tiny_folder).pooling == "mean"


def test_a_pooling_that_tmft_does_not_know_is_refused(tiny_folder):
    (tiny_folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "middletoken"}))
    with pytest.raises(InputError, match="pooling 'middletoken': choose one of mean, cls, max, "):
        SentenceEncoder.from_pretrained(tiny_folder)


# -------------------------------------------------------------------- poolings that only tmft knows


def first_and_last(hidden, rows, weights=None):
    """(B, T, D) -> (S, 2 D)"""
    ends = [POOLINGS[name].pool(hidden, rows, weights) for name in ("cls", "lasttoken")]
    return torch.cat(ends, dim=1)


OURS = {
    "middle": Pooling(lambda hidden, rows, weights: POOLINGS["max"].pool(hidden, rows, weights) / 2),
    "ends": Pooling(first_and_last, num_vectors=2),
}


@pytest.fixture(params=["middle", "ends", "cls+middle"])
def ours(request, monkeypatch) -> SentenceEncoder:
    """A model with a pooling that sentence-transformers does not know."""
    for name, row in OURS.items():
        monkeypatch.setitem(POOLINGS, name, row)
    model = tiny_model()
    model.pooling = request.param
    return model


def test_a_pooling_of_tmft_has_its_width(ours):
    widths = {"middle": 24, "ends": 48, "cls+middle": 48}
    assert ours.dimensions == ours.encode(SENTENCES).shape[1] == widths[ours.pooling]


def test_a_pooling_of_tmft_is_saved_in_the_folder(ours, tmp_path):
    ours.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path)
    assert again.pooling == ours.pooling
    np.testing.assert_array_equal(again.encode(SENTENCES), ours.encode(SENTENCES))


def test_the_compatibility_note_is_in_the_model_card(ours, tmp_path):
    ours.save_pretrained(tmp_path)
    said = f"sentence-transformers has no pooling {ours.pooling!r} and takes the mean."
    assert ours.compatibility_note == said
    assert said in (tmp_path / "README.md").read_text()


def test_a_pooling_of_sentence_transformers_needs_no_compatibility_note(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    assert model.compatibility_note == ""
    assert "In other libraries" not in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_sentence_transformers_opens_a_pooling_of_tmft_as_the_mean(ours, tmp_path):
    ours.save_pretrained(tmp_path)
    mean = tiny_model()
    assert_same_embeddings(their_embeddings(tmp_path), mean.encode(SENTENCES))


def test_tmft_json_is_removed_when_another_model_is_saved(ours, tmp_path):
    ours.save_pretrained(tmp_path)
    tiny_model().save_pretrained(tmp_path)
    assert SentenceEncoder.from_pretrained(tmp_path).pooling == "mean"


def test_a_pooling_of_width_2_trains_and_saves(ours, tmp_path):
    before = ours.encode(SENTENCES)
    examples = Examples((["a man", "the cat", "music"], ["a woman", "two dogs", "guitar"]), [5.0, 1.0, 3.0])
    recipe = replace(Recipe(), epochs=1, batch_size=2, lr=1e-3)
    task = TASKS["stsb"]
    for _ in fit(
        ours, training_task(task, CosineMSE(ours.dimensions, task), examples, examples), recipe, seed=0
    ):
        pass
    after = ours.encode(SENTENCES)
    assert np.abs(after - before).max() > 1e-4
    ours.save_pretrained(tmp_path)
    np.testing.assert_array_equal(SentenceEncoder.from_pretrained(tmp_path).encode(SENTENCES), after)


# -------------------------------------------------------------------------------- token weights: WordWeights

V = len(VOCABULARY)
TEXTS = ["a man", "the cat eats.", "a man plays the guitar", "two dogs in a park", "Is it not?"]


def random_weights(lowest: float = 0.1) -> torch.Tensor:
    return torch.rand(V, generator=torch.Generator().manual_seed(0)) + lowest


def weighted(name: str, prompt: str = "", after: list = ()) -> SentenceEncoder:
    """A row of TOKENS, idf of TEXTS, or random weights in a tiny model, modules after it."""
    model = tiny_model()
    model.prompt = prompt
    if name == "random":
        model.token_weights = TokenWeights(random_weights())
    else:
        of_texts = (Prompt(prompt, model.tokenizer), V, model.tokenize(TEXTS))
        model.token_weights = make_token_weights(name, *of_texts)
    torch.manual_seed(2)
    model.head_modules = torch.nn.Sequential(*after).eval()
    return model


def build_weighted(folder: Path, pooling: str, after: list = (), weights=None, **settings) -> Path:
    """The same with the classes of sentence-transformers: Transformer, WordWeights, Pooling and more."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as kinds

    model = tiny_model()
    model.save_pretrained(folder / "tiny")
    words = model.tokenizer.vocabulary
    values = (random_weights() if weights is None else weights).tolist()
    modules = [
        kinds.Transformer(str(folder / "tiny")),
        kinds.WordWeights(words, dict(zip(words, values, strict=True))),
        kinds.Pooling(24, pooling_mode=pooling),
        *after,
    ]
    SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder / "theirs"))
    return folder / "theirs"


@pytest.mark.slow
@pytest.mark.parametrize("following", ["nothing", "Normalize", "Dense"])
def test_word_weights_of_sentence_transformers_are_read(following, tmp_path):
    from sentence_transformers.sentence_transformer import modules as kinds

    torch.manual_seed(1)
    after = {
        "nothing": [],
        "Normalize": [kinds.Normalize()],
        "Dense": [kinds.Dense(24, 6), kinds.Normalize()],
    }
    folder = build_weighted(tmp_path, "mean", after[following])
    model, expected = SentenceEncoder.from_pretrained(folder), their_embeddings(folder)
    assert_same_embeddings(model.encode(SENTENCES), expected, 1e-6)
    assert torch.equal(model.token_weights.table, random_weights())
    model.save_pretrained(tmp_path / "ours")
    assert np.array_equal(
        SentenceEncoder.from_pretrained(tmp_path / "ours").encode(SENTENCES), model.encode(SENTENCES)
    )
    assert_same_embeddings(their_embeddings(tmp_path / "ours"), expected, 1e-6)


@pytest.mark.slow
def test_word_weights_are_also_of_the_prompt(tmp_path):
    prompts = {"prompts": {"query": "a dog "}, "default_prompt_name": "query"}
    folder = build_weighted(tmp_path, "mean", **prompts)
    assert_same_embeddings(
        SentenceEncoder.from_pretrained(folder).encode(SENTENCES), their_embeddings(folder), 1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("pooling", IN_ORDER)
def test_word_weights_before_any_pooling_are_the_same_or_refused(pooling, tmp_path):
    """There they multiply the hidden states, so that all poolings see them."""
    folder = build_weighted(tmp_path, pooling)
    try:
        model = SentenceEncoder.from_pretrained(folder)
    except InputError as error:
        assert pooling != "mean" and "\n" not in str(error) and "name a pooling" in str(error)
    else:
        assert_same_embeddings(model.encode(SENTENCES), their_embeddings(folder))


@pytest.mark.slow
def test_postprocessing_after_token_weights_is_the_same_in_sentence_transformers(tmp_path):
    model = weighted("idf")
    texts = [*SENTENCES, *TEXTS, "a cat", "the dog plays", "guitar music", "in the park"]
    model.head_modules = torch.nn.Sequential(
        *fit_postprocessing("abtt+normalize", torch.from_numpy(model.encode(texts)))
    )
    model.save_pretrained(tmp_path)
    assert_same_embeddings(their_embeddings(tmp_path), model.encode(SENTENCES), 1e-5)


@pytest.mark.slow
def test_sentence_transformers_gives_zeros_where_all_weights_are_0_as_the_card_says(tmp_path):
    from sentence_transformers import SentenceTransformer

    model = weighted("content-words")
    model.save_pretrained(tmp_path)
    assert "all have weight 0 a vector of zeros" in (tmp_path / "README.md").read_text()
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(["a, the. A man!"])
    assert not theirs.any() and model.encode(["a, the. A man!"]).any()


def test_word_weights_are_saved_between_transformer_and_pooling(tmp_path):
    weighted("random", after=[Dense(24, 8), Normalize()]).save_pretrained(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [(m["idx"], m["name"], m["path"], m["type"].rpartition(".")[2]) for m in modules] == [
        (0, "0", "", "Transformer"),
        (1, "1", "0_WordWeights", "WordWeights"),
        (2, "2", "1_Pooling", "Pooling"),
        (3, "3", "2_Dense", "Dense"),
        (4, "4", "3_Normalize", "Normalize"),
    ]
    said = json.loads((tmp_path / "0_WordWeights/config.json").read_text())
    tokenizer = SentenceEncoder.from_pretrained(tmp_path).tokenizer
    assert said["vocab"] == tokenizer.vocabulary
    numbers = tokenizer.backend.get_vocab()
    for word in ("man", "[CLS]", "##s"):
        assert said["word_weights"][word] == pytest.approx(random_weights()[numbers[word]].item())
    assert not (tmp_path / "tmft.json").exists()


def test_the_files_of_word_weights_are_requested(tmp_path):
    weighted("random").save_pretrained(tmp_path)
    names = ModelFolder(tmp_path).file_names()
    assert {"0_WordWeights/config.json", "0_WordWeights/model.safetensors"} <= set(names)


@pytest.mark.parametrize("path", ["../0_WordWeights", "a/b", ".."])
def test_weights_outside_the_folder_are_refused(path, tmp_path):
    weighted("random").save_pretrained(tmp_path / "model")
    modules = json.loads((tmp_path / "model/modules.json").read_text())
    modules[1]["path"] = path
    (tmp_path / "model/modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="a WordWeights is in .*, not in a folder directly below"):
        SentenceEncoder.from_pretrained(tmp_path / "model")


def test_weights_without_their_tensor_are_one_line(tmp_path):
    weighted("random").save_pretrained(tmp_path)
    store_weights(tmp_path / "0_WordWeights", {"other": torch.ones(V, 1)})
    with pytest.raises(InputError, match="0_WordWeights") as error:
        SentenceEncoder.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


def test_a_pooling_that_is_named_needs_no_readable_weights(tmp_path):
    weighted("random").save_pretrained(tmp_path)
    shutil.rmtree(tmp_path / "0_WordWeights")
    expected = tiny_model().encode(SENTENCES)
    assert np.array_equal(
        SentenceEncoder.from_pretrained(tmp_path, pooling="mean").encode(SENTENCES), expected
    )


def test_a_model_that_cannot_be_saved_leaves_the_folder_unchanged(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    model = tiny_model(num_hidden_layers=2)
    model.head_modules = torch.nn.Sequential(
        *fit_postprocessing("quantile", torch.from_numpy(model.encode(SENTENCES)))
    )
    with pytest.raises(InputError, match="postprocess quantile cannot be saved"):
        model.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# ----------------------------------------------------------------------------------------- Transformer below


def move_in(folder: Path, name: str, *files: str) -> Path:
    """The files of the first module go into a folder of its own, and modules.json says so."""
    (folder / name).mkdir()
    for file in files:
        if (folder / file).is_file():
            shutil.move(folder / file, folder / name / file)
    first, *others = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([first | {"path": name}, *others]))
    return folder


OF_A_TRANSFORMER = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
OF_A_TRANSFORMER += ("sentence_bert_config.json", "special_tokens_map.json", "vocab.txt")


@pytest.mark.slow
@pytest.mark.parametrize("root", ["empty", "a version"])
@pytest.mark.parametrize("name", ["mean", "all"])
def test_a_transformer_in_a_folder_of_its_own_is_read(name, root, tmp_path):
    """Until version 2.0 of sentence-transformers they all were, beside a config.json with the version."""
    folder = move_in(build(tmp_path, *MODELS[name]), "0_Transformer", *OF_A_TRANSFORMER)
    if root == "a version":
        (folder / "config.json").write_text('{"__version__": "1.2.0"}')
    model, expected = SentenceEncoder.from_pretrained(folder), their_embeddings(folder)
    assert_same_embeddings(model.encode(SENTENCES), expected)
    model.save_pretrained(tmp_path / "ours")
    assert_same_embeddings(their_embeddings(tmp_path / "ours"), expected)


@pytest.mark.slow
def test_limit_and_lower_case_of_a_transformer_below_are_kept(tmp_path):
    tiny = tiny_model()
    tiny.tokenizer = load_tokenizer(vocabulary_folder(do_lower_case=False))
    folder = move_in(build(tmp_path, ["mean"], tiny=tiny), "0_Transformer", *OF_A_TRANSFORMER)
    tokenizer = json.loads((folder / "0_Transformer/tokenizer_config.json").read_text())
    tokenizer.pop("model_max_length", None)
    (folder / "0_Transformer/tokenizer_config.json").write_text(json.dumps(tokenizer))
    old = {"max_seq_length": 6, "do_lower_case": True}  # as versions before 6 wrote it
    (folder / "0_Transformer/sentence_bert_config.json").write_text(json.dumps(old))
    model = SentenceEncoder.from_pretrained(folder)
    assert model.max_length == 6
    assert_same_embeddings(model.encode(SENTENCES), their_embeddings(folder))


# ------------------------------------------------------------------------------- StaticEmbedding

ODD = ["", "漢字 😀", "[PAD]", "[CLS] music [SEP]", "music " * 300, "the the the cat"]


def build_static(folder: Path, normalized: bool, truncation: int | None = None) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as kinds

    tokenizer = tokenizers.Tokenizer.from_str(tiny_model().tokenizer.backend.to_str())
    if truncation:
        tokenizer.enable_truncation(truncation)
    modules = [kinds.StaticEmbedding(tokenizer, embedding_weights=random_word_vectors(V, 8))]
    modules += [kinds.Normalize()] * normalized
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return folder


def their_static(folder: Path, texts: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(texts)


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("place", ["", "0_StaticEmbedding"])
def test_a_static_embedding_is_read(place, normalized, tmp_path):
    folder = build_static(tmp_path / "theirs", normalized)
    if place:
        move_in(folder, place, "model.safetensors", "tokenizer.json")
    model, texts = SentenceEncoder.from_pretrained(folder), [*SENTENCES, *ODD[1:]]
    assert model.encoder.config.model_type == "static" and model.dimensions == 8
    assert_same_embeddings(model.encode(texts), their_static(folder, texts), 1e-6)
    model.save_pretrained(tmp_path / "ours")
    again = SentenceEncoder.from_pretrained(tmp_path / "ours")
    assert np.array_equal(again.encode(texts), model.encode(texts))
    assert_same_embeddings(their_static(tmp_path / "ours", texts), model.encode(texts), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("texts", [["", "music"], [" ", "\n"]])
def test_a_text_without_words_is_the_same_in_a_static_embedding(texts, normalized, tmp_path):
    folder = build_static(tmp_path, normalized)
    assert_same_embeddings(
        SentenceEncoder.from_pretrained(folder).encode(texts), their_static(folder, texts), 1e-6
    )


@pytest.mark.slow
def test_a_static_embedding_that_cuts_long_texts_is_read_with_its_limit(tmp_path):
    """A tokenizer.json may say that it truncates, and StaticEmbedding lets it."""
    folder = build_static(tmp_path, False, truncation=4)
    model = SentenceEncoder.from_pretrained(folder)
    assert model.max_length == 4
    assert_same_embeddings(model.encode(SENTENCES), their_static(folder, SENTENCES), 1e-6)


def static_model(after: list = (), **settings) -> SentenceEncoder:
    torch.manual_seed(3)
    tokenizer = without_special_tokens(tiny_model().tokenizer)
    return SentenceEncoder(
        static_encoder(random_word_vectors(V, 8)), tokenizer, modules=after, **settings
    ).eval()


def test_the_files_of_a_static_model_are_those_of_sentence_transformers(tmp_path):
    static_model([Normalize()]).save_pretrained(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [(m["path"], m["type"].rpartition(".")[2]) for m in modules] == [
        ("", "StaticEmbedding"),
        ("1_Normalize", "Normalize"),
    ]
    assert stored_weights(tmp_path).keys() == {"embedding.weight"}
    assert not (tmp_path / "1_Pooling").exists() and not (tmp_path / "sentence_bert_config.json").exists()


# --------------------------------------------------------------------------------------- all choices at once


@pytest.mark.slow
def test_the_compatibility_note_lists_every_unsupported_setting(tmp_path):
    tiny_model(model_type="bert").save_pretrained(tmp_path / "tiny")
    model = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer="1+3")
    model.prompt = "a dog [X] is [M]"
    model.token_weights = make_token_weights("no-prompt", Prompt(model.prompt, model.tokenizer), V)
    said = [
        "takes the last hidden state, not the mix 1+3",
        "takes the plain mean of all tokens, without the token weights no-prompt",
        "leaves out the prompt 'a dog [X] is [M]'",
    ]
    assert model.compatibility_note == " ".join(f"sentence-transformers {part}." for part in said)
    model.save_pretrained(tmp_path / "saved")
    plain = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer=3)
    assert_same_embeddings(their_embeddings(tmp_path / "saved"), plain.encode(SENTENCES))
    ours = json.loads((tmp_path / "saved/tmft.json").read_text())
    assert ours == {
        "format": 1,
        "layer_mix": "1+3",
        "token_weights": "no-prompt",
        "prompts": {"default": "a dog [X] is [M]"},
        "default_prompt_name": "default",
    }
