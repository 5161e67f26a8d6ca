"""Options of train.py are the fields of the dataclasses that configure a run, each with a help text."""

import json
from dataclasses import dataclass, fields

import pytest

import evaluate
import train
from tmft import InputError
from tmft.cli.options import field_texts
from tmft.cli.train_options import FINE_TUNING, GROUPS, PRETRAINING, objective_fields
from tmft.loss import CosineMSE
from tmft.losses.objectives import OBJECTIVES
from tmft.runs.result_json import to_json_types
from tmft.runs.run_config import parse_keep_layers

CONFIGS = {*FINE_TUNING, *PRETRAINING} | {one.config_class for one in OBJECTIVES.values() if one.config_class}
FIELDS = {(config.__name__, field.name): config for config in CONFIGS for field in fields(config)}
# What a command asks for besides: which runs, of which data and loss, and where they are written.
OF_THE_COMMAND = {
    *("num_seeds", "device", "data", "data_root", "score_range", "objective", "selection_metric"),
    *("output_dir", "run_name", "config", "help", "help_all"),
}


def options() -> dict[str, str]:
    """The help of each option by its attribute."""
    return {action.dest: action.help for action in train.train_parser()._actions}


@pytest.mark.parametrize(("config", "name"), sorted(FIELDS))
def test_every_field_of_a_recipe_is_an_option_with_a_help_text(config, name):
    if name != "recipe":  # whose fields are options themselves
        assert len(options()[name]) > 10
        assert name == "task" or len(field_texts(FIELDS[config, name])[name]) > 10


def test_every_option_that_is_not_about_the_command_is_a_field():
    assert options().keys() - {name for _, name in FIELDS} == OF_THE_COMMAND


def test_a_group_names_fields_and_each_field_once():
    names = " ".join(GROUPS.values()).split()
    assert len(names) == len(set(names)) and set(names) <= {name for _, name in FIELDS}


@dataclass(frozen=True)
class EveryTypeConfig:
    """Hyperparameters of a loss.

    margin: distance of the pairs,
        in 100 % of the cosine, see `lr`.
    passes: how often the loss is applied.
    temperature: divide by X.
    """

    margin: float = 0.5
    passes: int | None = None
    mode: str = "first"
    centered: bool = True
    scaled: bool = False
    powers: tuple[float, ...] = (1.0, 2.0)
    temperature: float = 0.1


@pytest.fixture
def every_type(monkeypatch):
    registered = type("EveryType", (CosineMSE,), {"config_class": EveryTypeConfig})
    monkeypatch.setitem(OBJECTIVES, "every_type", registered)


def test_the_hyperparameters_of_a_registered_loss_are_options(every_type, capsys):
    with pytest.raises(SystemExit):
        train.parse_args(["--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--margin X distance of the pairs, in 100 % of the cosine, see --lr; default: 0.5" in shown
    assert "objective every_type: --margin X" in shown and "default: first" in shown
    assert "set by the task, else 0.05; with --objective every_type 0.1" in shown
    words = "--margin 0.3 --passes 2 --mode last --no-centered --scaled --powers 1 3".split()
    args = train.parse_args(["--objective", "every_type", *words])
    given = {name: getattr(args, name) for name in objective_fields() if getattr(args, name) is not None}
    assert given == {
        **{"margin": 0.3, "passes": 2, "mode": "last", "centered": False, "scaled": True},
        "powers": [1.0, 3.0],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--margin 1", "--margin has no effect with --objective cosine_mse: remove it"),
        ("--margin 1 --task mlm --text x", "--margin has no effect with --task mlm: remove --margin"),
        ("--margin wide --objective every_type", "--margin: invalid float value: 'wide'; see --help"),
    ],
)
def test_a_hyperparameter_of_another_loss_is_refused(every_type, tiny_folder, words, message):
    with pytest.raises(InputError) as error:
        train.main(["--ckpt", str(tiny_folder), "--device", "cpu", *words.split()])
    assert error.value.as_cli_message() == message


def test_an_option_that_was_recorded_is_repeated_as_it_was_given(every_type):
    """Also one whose name is not that of its attribute, such as --no-symmetric."""
    p = train.train_parser()
    for action in p._actions:
        if action.dest in ("help", "help_all", "config"):
            continue
        samples = {parse_keep_layers: "0,2", int: "3", float: "0.5"}
        value = next(iter(action.choices)) if action.choices else samples.get(action.type, "x")
        number = 0 if action.nargs == 0 else action.nargs if isinstance(action.nargs, int) else 1
        given = vars(p.parse_args([action.option_strings[0], *[value] * number]))
        repeated = train.train_parser()
        repeated.set_defaults(**to_json_types(given))
        assert to_json_types(vars(repeated.parse_args([]))) == to_json_types(given)
        assert given[action.dest] != action.default


def test_a_run_with_hyperparameters_of_all_types_is_scored_again(every_type, arguments, tmp_path):
    words = "--layer 1 --objective every_type --mode last --powers 1 3 --no-centered --margin 0.25".split()
    train.main([*arguments, *words])
    folder = tmp_path / "runs" / "r-layer1-seed0"
    result = json.loads((folder / "result.json").read_text())
    given = {"margin": 0.25, "mode": "last", "centered": False, "powers": [1.0, 3.0]}
    assert result["settings"]["task"]["objective_args"] == given
    evaluate.main([str(folder), "--json", str(tmp_path / "again.json")])
    again = json.loads((tmp_path / "again.json").read_text())["layers"]["1"]
    assert list(again.values()) == [result["test"]]
