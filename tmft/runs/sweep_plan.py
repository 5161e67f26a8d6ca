"""What is to be done: runs over checkpoints, layers and seeds, each with all that its scores depend on."""

import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tmft.checkpoints.hub import find
from tmft.checkpoints.load import read_config
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.distributed import Processes
from tmft.embedding.token_weights import check_tokens
from tmft.errors import InputError
from tmft.io.atomic import reason
from tmft.losses.registry import OBJECTIVES
from tmft.models.bert import EncoderConfig
from tmft.runs.run_config import FineTuningConfig, Run
from tmft.runs.run_folder import check_name, claim, finished_run, provenance_of
from tmft.runs.sweeps import summaries


def plan(
    ckpts: Sequence[str],
    layers: str | None,
    seeds: Sequence[int],
    like: FineTuningConfig,
    data: str,
    runs: Path,
    name: str | None = None,
    mark: str = "",
) -> list[Run]:
    """A run for each checkpoint, layer and seed, otherwise like `like`.

    layers: as in parse_layers; data: the name of the data; runs: the folder of run folders; name: of the
    sweep, None: checkpoint and data; mark: added to both. Raises InputError, before any work, if a run cannot
    be done.
    """
    if name and len(ckpts) > 1:
        raise InputError(
            "name with several ckpt: leave it out, a sweep is named after its checkpoint", "name", "ckpt"
        )
    check_name(name)
    if not like.task.objective:
        raise InputError("this task has no objective: score it with evaluate.py", "task")
    size = like.recipe.batch_size
    for part in like.task.each.values():
        if size < (least := getattr(OBJECTIVES[part.objective], "least", 1)):
            what = f"batch_size {size}: {part.objective} compares the examples of a batch"
            raise InputError(f"{what}, choose {least} or more", "batch_size")
    if like.weights is not None and len(like.weights) != len(like.task.each):
        what = f"weights {' '.join(map(str, like.weights))}: there are {len(like.task.each)} tasks"
        raise InputError(f"{what}, give each of them one", "weights")
    if like.keep and layers:
        raise InputError("keep and layer: give one of the two", "keep", "layer")
    check_tokens(like.tokens, like.pooling)
    planned, claimed = [], {}
    for ckpt in ckpts:
        original = find(ckpt, weights=False)
        config = read_config(original)
        wanted = (
            [check_keep(like.keep, config)] if like.keep else parse_layers(layers, config)
        )  # before the weights are fetched
        whole = original if like.init_from or like.init == "random" else find(ckpt)
        for layer in wanted:
            for seed in seeds:
                what = replace(like, ckpt=ckpt, layer=layer, seed=seed)
                folder = whole
                if like.init_from:
                    start = like.init_from.replace("{layer}", str(layer)).replace("{seed}", str(seed))
                    what, folder = replace(what, init_from=start), find(start)
                    check_same_model(folder, original, layer)
                history = provenance_of(folder)
                before = [run["data"] for run in history] if like.init_from else []
                random = ["random"] if like.init == "random" else []
                kept = [f"keep{'+'.join(map(str, like.keep))}"] if like.keep else []
                names = [Path(ckpt.partition("@")[0]).name, *kept, *random, *before, data]
                sweep = (name or "-".join(names)) + mark
                where = runs / f"{sweep}-layer{layer}-seed{seed}"
                claim(where, ckpt, what.settings, claimed)
                planned.append(
                    Run(what, sweep, where, data + mark, folder, history, config.num_hidden_layers)
                )
    return planned


def run_all(runs: list[Run], processes: Processes, do: Callable[[Run, Processes], None]) -> None:
    """Do this process's share of the runs, or its share of each, as the objective has it; then one process
    shows a table for each sweep. do: a run, by these processes; each but the first works in silence.

    A run that dies does not stop the others: it is named at the end, in an InputError.
    """
    alone, shared = Processes(0, 1, processes.device), processes.world_size > 1
    objectives = {part.objective for run in runs for part in run.what.task.each.values()}
    together = shared and any(getattr(OBJECTIVES[name], "together", False) for name in objectives)
    for run in runs if together else runs[processes.rank :: processes.world_size]:
        try:
            if not together:
                do(run, alone)
            elif processes.rank == 0:
                do(run, processes)
            elif not finished_run(run.folder, run.what.settings):  # then the first one works on it, too
                with TemporaryDirectory() as folder, redirect_stdout(None):
                    do(replace(run, folder=Path(folder)), processes)
        except Exception as error:
            if len(runs) == 1 or together:  # the others wait for this one
                raise
            if not isinstance(error, InputError):
                traceback.print_exc()
            print(f"{run.folder}: died: {reason(error)}", flush=True)
    processes.barrier()
    if processes.rank == 0:
        print(*summaries([run.folder for run in runs]), sep="\n")
        if died := [run.folder.name for run in runs if not finished_run(run.folder, run.what.settings)]:
            raise InputError(
                f"{len(died)} of {len(runs)} runs died ({', '.join(died)}): the reasons are above; the same "
                "command runs them again and keeps the others"
            )


def parse_layers(text: str | None, config: EncoderConfig) -> list[int]:
    """'9' -> [9]; '0-12', '3,6,9' and 'all' -> several, each once; None -> the last."""
    if text is None:
        return [config.num_hidden_layers]
    if text == "all":
        return list(range(config.num_hidden_layers + 1))
    layers = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if not found:
            raise InputError(f"layer {text}: write 9, 0-12, 3,6,9, all or auto", "layer")
        first, last = (config.resolve_num_layers(int(number)) for number in (found[1], found[2] or found[1]))
        layers += range(first, last + 1)
    if not layers:
        raise InputError(f"layer {text}: the first number must be the smaller one", "layer")
    return list(dict.fromkeys(layers))


def check_keep(keep: tuple[int, ...], config: EncoderConfig) -> int:
    """How many they are. Raises InputError if a checkpoint has not all of them."""
    if keep[-1] >= config.num_hidden_layers:
        what = f"keep {keep[-1]}: this checkpoint has {config.num_hidden_layers} layers"
        raise InputError(f"{what}, choose from 0 to {config.num_hidden_layers - 1}", "keep")
    return len(keep)


def check_same_model(folder: Path, original: Path, layer: int) -> None:
    """Whether folder holds the first `layer` layers of the original checkpoint, with other values.

    Both folders need config.json and a tokenizer. Raises InputError that names the first difference.
    """
    ours, theirs = (asdict(read_config(where)) for where in (folder, original))
    if ours["num_hidden_layers"] != layer:
        raise InputError(
            f"{folder} has {ours['num_hidden_layers']} layers: layer {layer} must start from {layer}"
        )
    for key in theirs.keys() - {"num_hidden_layers"}:
        if ours.get(key) != theirs[key]:
            raise InputError(
                f"{folder} has {key} {ours.get(key)}, {original} has {theirs[key]}: "
                "they are not of one checkpoint"
            )
    vocabularies = [load_tokenizer(where).backend.get_vocab() for where in (folder, original)]
    if vocabularies[0] != vocabularies[1]:
        raise InputError(
            f"{folder} and {original} have different vocabularies: they are not of one checkpoint"
        )
