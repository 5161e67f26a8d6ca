"""Folders of sentence-transformers: the same embeddings here as there, before and after we save them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, assert_same_embeddings, tiny_model, vocabulary_folder

from tmft.data import TASKS, Examples
from tmft.errors import InputError
from tmft.extraction.modules import Dense, LayerNorm, Normalize
from tmft.files.sentence_folder import module_files, pooling_name
from tmft.files.tokenizer import load_tokenizer
from tmft.objectives import CosineMSE
from tmft.pooling import POOLINGS, Pooling
from tmft.sentence import SentenceEncoder
from tmft.training import Recipe, fit

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

    (tiny or tiny_model()).save(folder / "tiny")
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
    model.save(str(folder / "theirs"))
    return folder / "theirs"


def in_the_old_form(folder: Path) -> None:
    """1_Pooling/config.json as versions before 5.3 wrote it: a key for each pooling."""
    path = folder / "1_Pooling/config.json"
    poolings = json.loads(path.read_text())["pooling_mode"]
    poolings = [poolings] if isinstance(poolings, str) else poolings
    content = {"word_embedding_dimension": 24, "include_prompt": True}
    content |= {row.elsewhere: name in poolings for name, row in POOLINGS.items()}
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
def test_a_folder_gives_the_embeddings_of_sentence_transformers(theirs):
    folder, expected = theirs
    assert_same_embeddings(SentenceEncoder.load(folder).encode(SENTENCES), expected)


@pytest.mark.slow
def test_dimensions_are_those_of_an_embedding(theirs):
    folder, expected = theirs
    assert SentenceEncoder.load(folder).dimensions == expected.shape[1]


@pytest.mark.slow
def test_saved_and_loaded_again_it_is_the_same(theirs, tmp_path):
    folder, _ = theirs
    model = SentenceEncoder.load(folder)
    model.save(tmp_path)
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path).encode(SENTENCES), model.encode(SENTENCES))


@pytest.mark.slow
def test_what_we_saved_is_the_same_in_sentence_transformers(theirs, tmp_path):
    folder, expected = theirs
    SentenceEncoder.load(folder).save(tmp_path)
    assert_same_embeddings(their_embeddings(tmp_path), expected)


@pytest.mark.slow
@pytest.mark.parametrize("saved_by", ["them", "us"])
def test_the_default_prompt_is_put_before_each_sentence(saved_by, tmp_path):
    prompts = {"prompts": {"query": "a dog ", "other": "music "}, "default_prompt_name": "query"}
    folder = build(tmp_path, ["mean"], **prompts)
    model = SentenceEncoder.load(folder)
    assert model.prompt == "a dog "
    if saved_by == "us":
        model.save(folder := tmp_path / "ours")
        model = SentenceEncoder.load(folder)
    assert_same_embeddings(model.encode(SENTENCES), their_embeddings(folder))


@pytest.mark.slow
@pytest.mark.parametrize("saved_by", ["them", "us"])
def test_text_is_lower_cased_where_the_folder_says_so(saved_by, tmp_path):
    """By a tokenizer that leaves it as it is."""
    tiny = tiny_model()
    tiny.tokenizer = load_tokenizer(vocabulary_folder(do_lower_case=False))
    folder = build(tmp_path, ["mean"], tiny=tiny, lower_case=True)
    model = SentenceEncoder.load(folder)
    if saved_by == "us":
        model.save(folder := tmp_path / "ours")
        model = SentenceEncoder.load(folder)
    assert model.tokenize(["A MAN"]) == model.tokenize(["a man"]) != tiny.tokenize(["A MAN"])
    assert_same_embeddings(model.encode(SENTENCES), their_embeddings(folder))


@pytest.mark.slow
def test_the_length_limit_of_the_folder_is_kept(tmp_path):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(build(tmp_path, ["mean"])), device="cpu")
    theirs.max_seq_length = 6
    theirs.save(str(tmp_path / "short"))
    model = SentenceEncoder.load(tmp_path / "short")
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
    "outside": ("Dense", "../2_Dense", DENSE, r"modules.json has a Dense in '../2_Dense'"),
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
        SentenceEncoder.load(tiny_folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["unknown", "residual", "of tokens"])
def test_the_line_names_the_way_out(name, tiny_folder):
    *module, settings, _ = CANNOT[name]
    add_module(tiny_folder, *module, **settings)
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(tiny_folder)
    assert "name a pooling" in str(error.value)
    assert "--pooling" in error.value.of_command()


@pytest.mark.parametrize("name", CANNOT)
def test_a_pooling_that_is_named_leaves_out_what_follows(name, tiny_folder):
    expected = SentenceEncoder.load(tiny_folder).encode(SENTENCES)
    *module, settings, _ = CANNOT[name]
    add_module(tiny_folder, *module, **settings)
    model = SentenceEncoder.load(tiny_folder, pooling="mean")
    np.testing.assert_array_equal(model.encode(SENTENCES), expected)


def test_a_pooling_that_is_named_leaves_out_a_module_that_could_be_run(tmp_path):
    model = tiny_model()
    expected = model.encode(SENTENCES)
    model.after = torch.nn.Sequential(Dense(24, 8), Normalize())
    model.save(tmp_path)
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path, pooling="mean").encode(SENTENCES), expected)


def test_a_pooling_without_the_prompt_is_not_supported(tiny_folder):
    pooling = {"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": False}
    (tiny_folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    SentenceEncoder.load(tiny_folder)  # there is no prompt
    prompt = {"prompts": {"q": "music "}, "default_prompt_name": "q"}
    (tiny_folder / "config_sentence_transformers.json").write_text(json.dumps(prompt))
    with pytest.raises(InputError, match=r"pools without its prompt 'q' \(include_prompt\)"):
        SentenceEncoder.load(tiny_folder)


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
    assert pooling_name(content) == name


def test_the_pooling_is_read_from_the_folder_that_modules_json_names(tiny_folder):
    modules = json.loads((tiny_folder / "modules.json").read_text())
    modules[1]["path"] = "5_Pool"
    (tiny_folder / "modules.json").write_text(json.dumps(modules))
    (tiny_folder / "5_Pool").mkdir()
    (tiny_folder / "5_Pool/config.json").write_text('{"pooling_mode": "cls"}')
    assert SentenceEncoder.load(tiny_folder).pooling == "cls"
    assert "5_Pool/config.json" in module_files(tiny_folder)


def test_no_file_outside_the_folder_is_asked_for(tiny_folder):
    add_module(tiny_folder, "Dense", "../elsewhere")
    assert not any(".." in name for name in module_files(tiny_folder))


def test_a_folder_that_says_nothing_pools_the_mean(tiny_folder):
    (tiny_folder / "1_Pooling/config.json").unlink()
    (tiny_folder / "modules.json").unlink()
    assert SentenceEncoder.load(tiny_folder).pooling == "mean"


def test_a_pooling_that_tmft_does_not_know_is_refused(tiny_folder):
    (tiny_folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "middletoken"}))
    with pytest.raises(InputError, match="pooling 'middletoken': choose one of mean, cls, max, "):
        SentenceEncoder.load(tiny_folder)


AFTER = {
    "nothing": lambda: [],
    "normalize": lambda: [Normalize()],
    "dense and norm": lambda: [Dense(48, 8, activation="Tanh"), LayerNorm(8)],
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("pooling", ["max+mean", "mean+max", "weightedmean+lasttoken"])
def test_pooling_modules_and_prompt_are_saved(pooling, after, tmp_path):
    model = tiny_model()
    model.pooling, model.prompt = pooling, "a "
    model.after = torch.nn.Sequential(*AFTER[after]()).eval()
    model.save(tmp_path)
    again = SentenceEncoder.load(tmp_path)
    assert (again.pooling, again.prompt) == (pooling, "a ")
    np.testing.assert_array_equal(again.encode(SENTENCES), model.encode(SENTENCES))


def test_a_pooling_that_is_named_twice_is_there_twice_after_saving(tmp_path):
    model = tiny_model()
    model.pooling = "mean+mean"
    model.save(tmp_path)
    assert SentenceEncoder.load(tmp_path).encode(SENTENCES).shape == (5, 48)


# -------------------------------------------------------------------- poolings that only tmft knows


def first_and_last(hidden, rows, weights=None):
    """(B, T, D) -> (S, 2 D)"""
    ends = [POOLINGS[name].pool(hidden, rows, weights) for name in ("cls", "lasttoken")]
    return torch.cat(ends, dim=1)


OURS = {
    "middle": Pooling(lambda hidden, rows, weights: POOLINGS["max"].pool(hidden, rows, weights) / 2),
    "ends": Pooling(first_and_last, width=2),
}


@pytest.fixture(params=["middle", "ends", "cls+middle"])
def ours(request, monkeypatch) -> SentenceEncoder:
    """A model with a pooling that sentence-transformers does not know."""
    for name, row in OURS.items():
        monkeypatch.setitem(POOLINGS, name, row)
    model = tiny_model()
    model.pooling = request.param
    return model


def test_a_pooling_of_ours_has_its_width(ours):
    widths = {"middle": 24, "ends": 48, "cls+middle": 48}
    assert ours.dimensions == ours.encode(SENTENCES).shape[1] == widths[ours.pooling]


def test_a_pooling_of_ours_is_remembered_by_the_folder(ours, tmp_path):
    ours.save(tmp_path)
    again = SentenceEncoder.load(tmp_path)
    assert again.pooling == ours.pooling
    np.testing.assert_array_equal(again.encode(SENTENCES), ours.encode(SENTENCES))


def test_the_model_and_its_card_say_what_others_do_instead(ours, tmp_path):
    ours.save(tmp_path)
    said = f"sentence-transformers has no pooling {ours.pooling!r} and takes the mean."
    assert ours.what_differs == said
    assert said in (tmp_path / "README.md").read_text()


def test_a_pooling_that_they_know_needs_no_such_words(tmp_path):
    model = tiny_model()
    model.save(tmp_path)
    assert model.what_differs == ""
    assert "Elsewhere" not in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_others_open_a_pooling_of_ours_as_the_mean(ours, tmp_path):
    ours.save(tmp_path)
    mean = tiny_model()
    assert_same_embeddings(their_embeddings(tmp_path), mean.encode(SENTENCES))


def test_a_pooling_of_ours_is_forgotten_where_another_model_is_saved(ours, tmp_path):
    ours.save(tmp_path)
    tiny_model().save(tmp_path)
    assert SentenceEncoder.load(tmp_path).pooling == "mean"


def test_a_pooling_of_width_2_trains_and_saves(ours, tmp_path):
    before = ours.encode(SENTENCES)
    examples = Examples((["a man", "the cat", "music"], ["a woman", "two dogs", "guitar"]), [5.0, 1.0, 3.0])
    recipe = replace(Recipe(), epochs=1, batch_size=2, lr=1e-3)
    task = TASKS["stsb"]
    for _ in fit(ours, CosineMSE(ours.dimensions, task), examples, examples, task, recipe, seed=0):
        pass
    after = ours.encode(SENTENCES)
    assert np.abs(after - before).max() > 1e-4
    ours.save(tmp_path)
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path).encode(SENTENCES), after)
