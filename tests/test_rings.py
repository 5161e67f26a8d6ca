"""The plan of the house, read from its syntax trees: who may import whom, and what stays in the commands.

Open files are the method, folders carry or use it; a module imports from rooms that stand before its own.
"""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT

from tmft.data import Examples
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS
from tmft.training_task import TrainingTask

# A room is a folder of tmft/, or one of its files. What stands later knows more.
ORDER = (
    "errors speed io formatting device distributed packing pooling models checkpoints embedding "
    "sentence_encoder tasks data metrics losses training cka pretraining serving datasets evaluation "
    "distillation runs reports fine_tuning cli __main__"
).split()

# The files that a reader of the method opens, from a TSV line to a Spearman correlation, as in README.md.
READING_PATH = (
    "train.py tmft/runs/fine_tune.py tmft/loop.py tmft/callbacks.py "
    "tmft/callbacks.py tmft/optimizers.py "
    "tmft/training_task.py tmft/tasks.py tmft/data.py tmft/sentence_encoder.py "
    "tmft/packing.py tmft/pooling.py tmft/encoder.py tmft/bert.py tmft/checkpoints/load.py "
    "tmft/loss.py tmft/loss.py tmft/metrics.py tmft/device.py"
).split()
COMMANDS = {"train", "cka", "evaluate"}
REFERENCES = {"transformers", "sentence_transformers", "sklearn"}
ON_DEMAND = {"matplotlib", "httpx", "huggingface_hub"}  # slow to import, and most runs need none of them


def name_of(path: Path) -> str:
    """tmft/io/text.py -> tmft.io.text; tmft/files/__init__.py -> tmft.files"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.glob("tmft/**/*.py"))}
OPTION, COMMAND = re.compile(r"(?<![\w-])--[a-z]"), re.compile(r"(\S+\.py|python -m tmft)\b.*")


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that the imports anywhere in a tree name, also those that they name as part of a folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import, line {node.lineno}"
            for alias in node.names:
                part = f"{node.module}.{alias.name}"
                yield part if part in TREES else node.module


def on_import(tree: ast.Module) -> ast.Module:
    """What runs when a module is imported: without the bodies of its functions."""
    inside = {
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for below in ast.walk(node)
    }
    body = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and id(node) not in inside]
    return ast.Module([node for node in body if isinstance(node, ast.Import | ast.ImportFrom)], [])


def room(module: str) -> str:
    """tmft.io.text -> io; the package itself -> its name"""
    return module.removeprefix("tmft.").partition(".")[0]


USES = {
    module: sorted({name for name in imported(tree) if name in TREES}) for module, tree in TREES.items()
}  # of each module those of tmft that it imports


def messages(tree: ast.AST) -> Iterator[str]:
    """The text of every InputError that is made, with {...} where a value is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError":
            yield "".join(map(text_of, node.args))


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    inside = "".join(map(text_of, ast.iter_child_nodes(node)))
    return f"{{{inside}}}" if isinstance(node, ast.FormattedValue) else inside


@pytest.mark.parametrize("module", [module for module in TREES if module != "tmft"])
def test_a_module_imports_only_from_rooms_before_its_own(module):
    here = ORDER.index(room(module))
    places = {used: ORDER.index("cli" if used == "tmft" else room(used)) for used in USES[module]}
    upward = [used for used, place in places.items() if place > here]  # tmft itself: from cli alone
    assert not upward, f"{module} imports {', '.join(upward)}, which stands later"


def test_no_module_imports_itself_round_a_circle():
    """Not within a room either, and not by an import inside a function."""
    try:
        TopologicalSorter(USES).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("module", TREES)
def test_the_library_imports_no_command_and_no_other_library_of_models(module):
    tops = {name.partition(".")[0] for name in imported(TREES[module])}
    assert not tops & (COMMANDS | REFERENCES)


@pytest.mark.parametrize("module", TREES)
def test_what_most_runs_do_not_need_is_imported_where_it_is_used(module):
    tops = {name.partition(".")[0] for name in imported(on_import(TREES[module]))}
    assert not tops & ON_DEMAND


LIBRARY = [module for module in TREES if room(module) not in ("cli", "__main__")]


@pytest.mark.parametrize("module", LIBRARY)
def test_arguments_of_a_command_line_stay_in_the_commands(module):
    """A method such as __torch_function__ has the parameters that its caller gives it."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.Lambda) and not getattr(node, "name", "").startswith("__"):
            parameters = [part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)]
            assert "args" not in parameters, f"a parameter args, line {node.lineno}"
        names = [getattr(node, key, None) for key in ("id", "attr", "name", "value")]
        assert not any(isinstance(name, str) and "Namespace" in name for name in names), node.lineno


@pytest.mark.parametrize("module", LIBRARY)
def test_messages_of_the_library_speak_of_parameters_not_of_options(module):
    """InputError.as_cli_message makes --lr of lr. A whole command, to be run next, may have options."""
    found = [message for message in messages(TREES[module]) if OPTION.search(COMMAND.sub("", message))]
    assert not found


# ----------------------------------------------------------------------------------------- the reading path

# What the files of the reading path import besides each other, speed/, io/ and errors: nothing of it is the
# method. A file that is added here is one more that a reader may have to open.
BESIDE_THE_PATH = {
    "the command line, sweeps and folders of runs": (
        "cli.config_file cli.parser cli.train_options datasets.task_lookup distributed formatting "
        "pretraining.loop runs.layer_search runs.pretrain runs.run_config runs.sweep_plan runs.bootstrap "
        "runs.run_folder runs.run_result"
    ),
    "what plugs into the loop": (
        "losses.nested training.all_layers training.checkpointing training.freezing training.gradient_cache "
        "training.gradient_surgery training.multitask training.quantized_weights training.trackers"
    ),
    "rows of more than 512 tokens": "models.attention",
    "files of checkpoints": (
        "checkpoints.model_folder checkpoints.model_card checkpoints.save "
        "checkpoints.st_folder checkpoints.tokenizers checkpoints.weights "
        "models.registry"
    ),
    "embeddings without training": (
        "embedding.layer_mix embedding.modules embedding.prompts embedding.similarity embedding.token_weights"
    ),
}


def test_the_reading_path_imports_nothing_that_is_not_listed():
    listed = {f"tmft.{name}" for names in BESIDE_THE_PATH.values() for name in names.split()}
    listed |= {name_of(ROOT / path) for path in READING_PATH}
    used = set()
    for path in READING_PATH:
        modules = imported(ast.parse((ROOT / path).read_text("utf-8")))
        used |= {name for name in modules if name in TREES and room(name) not in ("speed", "io", "errors")}
    assert used <= listed, used - listed
    in_registries = {"tmft.bert", "tmft.loss"}  # found by their names in them
    assert listed - used == {"train", *in_registries}, "listed, and imported by none of them"


def test_every_function_of_a_training_step_is_in_the_reading_path(tiny_folder, tmp_path):
    """What is called from the beginning of `fit` to the first optimizer step, by the paper's recipe."""
    model = SentenceEncoder.from_pretrained(tiny_folder, layer=2)
    pairs = Examples((["a man", "two dogs"], ["the man", "a cat"]), [4.5, 1.0])
    task = TrainingTask(TASKS["stsb"], CosineMSE(), {"train": pairs, "dev": pairs})
    called = set()

    def note(frame, event, argument):
        called.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        list(fit(model, task, Recipe(epochs=1), seed=0))
    finally:
        sys.setprofile(None)
    files = {str(Path(name).relative_to(ROOT)) for name in called if name.startswith(str(ROOT / "tmft"))}
    assert {"tmft/loop.py", "tmft/bert.py", "tmft/pooling.py"} <= files
    # the tokenizer is a file of the checkpoint, its prompt is empty, and one layer is no mean of several
    beside = "checkpoints/tokenizers checkpoints/tokenizer_json embedding/prompts embedding/layer_mix"
    beside = {f"tmft/{name}.py" for name in [*beside.split(), "errors", "io/files"]}
    outside = {name for name in files - set(READING_PATH) - beside if not name.startswith("tmft/speed/")}
    assert not outside, outside


def test_the_training_loop_has_one_subject():
    """`fit` has no branch on a feature: its one `if` is the step that fp16 may skip."""
    [tree] = [node for node in TREES["tmft.loop"].body if getattr(node, "name", "") == "fit"]
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp | ast.Match)]
    assert [ast.unparse(node.test) for node in branches] == ["amp.step(optimizer)"]
