"""The registry of model families: a config.json becomes a configuration, and each weight has one name."""

import ast
import json
import random
import re
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import ROOT, tiny_config
from random_configs import RANDOM_CONFIGS

from tmft.errors import InputError
from tmft.models.families import (
    FAMILIES,
    config_from_dict,
    config_to_dict,
    empty_encoder,
    parameter_names,
)

BERT = {key: value for key, value in tiny_config().items() if key not in ("model_type", "embedding_size")}
# Every optional module of a family is in one of its shapes.
SHAPES = {
    "bert without types": {"model_type": "bert", "type_vocab_size": 0},
    "electra": {},  # with a projection
    "new": {"model_type": "new"},  # another name of gte
    "static": {"model_type": "static", "initializer_range": 0.02},  # its file says its size, no more
} | {
    f"{model_type} {seed}": draw(random.Random(seed))
    for model_type, draw in RANDOM_CONFIGS.items()
    for seed in (2, 5, 7)
}


# ------------------------------------------------------------------------------- parameter_names


def test_the_shapes_are_of_every_family():
    assert {tiny_config(**changes)["model_type"] for changes in SHAPES.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", SHAPES)
def test_no_two_names_in_a_checkpoint_are_of_one_weight(name):
    names = parameter_names(config_from_dict(tiny_config(**SHAPES[name])))
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_is_of_a_module_that_some_encoder_with_these_names_has(family):
    """Some families share a table of names: each name is of a module that one of them has in some layer."""
    names, named, there = FAMILIES[family].weight_names, set(), set()
    for changes in SHAPES.values():
        content = tiny_config(**changes)
        if FAMILIES[content["model_type"]].weight_names == names:
            config = config_from_dict(content, FAMILIES[content["model_type"]].components)
            named |= {modules(name) for name in parameter_names(config).values()}
            there |= {modules(name) for name in empty_encoder(config).state_dict()}
    assert named == there
    assert ("decoder.layers.n.cross.query" in there) == family.endswith("t5")


def modules(name: str) -> str:
    """The module of a weight, without the number of its layer."""
    return re.sub(r"\.\d+\.", ".n.", name.rpartition(".")[0])


# ------------------------------------------------------------------------------- config_from_dict


@pytest.mark.parametrize("name", SHAPES)
def test_a_written_config_is_read_as_the_same_config(name):
    config = config_from_dict(tiny_config(**SHAPES[name]))
    written = json.dumps(config_to_dict(config))
    assert config_from_dict(json.loads(written)) == config


# Where transformers has another default: it says -1 or None and computes the value later, or has 32 key-value
# heads in a Qwen whatever the number of heads.
OTHER_DEFAULTS = {"layer_types", "pos_att_type", "max_relative_positions"}
QWEN_DEFAULTS = OTHER_DEFAULTS | {"num_key_value_heads"}


@pytest.mark.parametrize("model_type", sorted(FAMILIES.keys() - {"static", "new"}))
def test_keys_that_a_config_omits_get_the_defaults_of_transformers(model_type):
    from transformers import AutoConfig

    family = FAMILIES[model_type]
    sizes = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40}
    sizes["num_attention_heads"] = 8
    content = {family.keys.get(name, name): size for name, size in sizes.items()}
    ours, compared = config_from_dict({"model_type": model_type} | content), 0
    theirs = AutoConfig.for_model(model_type, **content)
    others = QWEN_DEFAULTS if model_type.startswith("qwen") else OTHER_DEFAULTS
    for config_field in fields(ours):
        name, key = config_field.name, family.keys.get(config_field.name, config_field.name)
        if key is None or name in others or not hasattr(theirs, key):
            continue
        value, expected = getattr(ours, name), getattr(theirs, key)
        if name.endswith("_token_id") and expected not in range(200):
            expected = None  # it is no token of this vocabulary
        assert value == expected, key
        compared += 1
    assert compared >= 12


def test_a_config_without_model_type_is_a_bert_and_null_is_the_default():
    assert config_from_dict(BERT | {"use_cache": True}).model_type == "bert"
    assert config_from_dict(BERT | {"hidden_act": None}).hidden_act == "gelu"
    assert config_from_dict(BERT | {"model_type": "electra"}).embedding_size == 128  # not hidden_size


@pytest.mark.parametrize("family", SHAPES)
def test_names_of_ours_alone_have_no_meaning_in_a_config(family):
    content = tiny_config(**SHAPES[family])
    for key in ("components", "parts", "default_max_length", "check", "span", "rope", "bias_in_each_layer"):
        for value in (5, "decoder", ["decoder"], {"a": 1}):
            assert config_from_dict(content | {key: value}) == config_from_dict(content)


@pytest.mark.parametrize("layer", [-1, 5])
def test_a_layer_out_of_range_says_the_range(layer):
    with pytest.raises(InputError, match=r"has 4 layers, choose 0 \(embeddings only\) to 4"):
        config_from_dict(tiny_config()).resolve_num_layers(layer)


# ----------------------------------------------------------------------------- what stands outside the table


SOURCES = [*sorted((ROOT / "tmft").rglob("*.py")), *sorted(ROOT.glob("*.py"))]
# The registry, and the file that is copied beside a compact model and has no registry to ask.
MAY_ASK = [ROOT / "tmft/models/families.py", ROOT / "tmft/export/numpy_encoder.py"]


def questions(path: Path) -> list[str]:
    """The places of a file that ask which family an encoder is of."""
    asked = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.unparse(node)
        if isinstance(node, (ast.Compare, ast.Match)):
            constants = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            if re.search(r"\bconfig\.model_type\b|\['model_type'\]", text) or constants & set(FAMILIES):
                asked.append(text)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            if "Deberta" in text or re.search(r"\b(BertEncoder|EncoderConfig)\b", text):
                asked.append(text)
        elif isinstance(node, ast.Attribute) and node.attr in ("startswith", "endswith"):
            if "model_type" in text:
                asked.append(text)
    return asked


def test_nothing_outside_the_registry_depends_on_the_family():
    asked = {path: questions(path) for path in SOURCES if path not in MAY_ASK}
    assert not {path: found for path, found in asked.items() if found}


@pytest.mark.parametrize("model_type", [name for name in RANDOM_CONFIGS if "t5" not in name])
def test_positions_for_less_than_a_word_between_two_special_tokens_are_refused(model_type):
    """Also of rotary positions, whose number is not the size of a table."""
    content = RANDOM_CONFIGS[model_type](random.Random(0)) | {"pad_token_id": 0}
    offset = config_from_dict(content).position_offset
    assert config_from_dict(content | {"max_position_embeddings": offset + 3}).max_tokens == 3
    with pytest.raises(InputError, match=rf"max_position_embeddings {offset + 2} \(config.json\): expected "):
        config_from_dict(content | {"max_position_embeddings": offset + 2})


@pytest.mark.parametrize("change", [{"hidden_dropout_prob": 2}, {"hidden_size": 2**70}])
def test_values_of_which_torch_makes_no_modules_are_one_line(change):
    config = config_from_dict(BERT | change)
    with pytest.raises(InputError, match="config.json cannot be read .*: correct its values"):
        empty_encoder(config)
