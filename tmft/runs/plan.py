"""What a command line asks for: runs over checkpoints, layers and seeds; and the table of what they left."""

from dataclasses import asdict, dataclass
from pathlib import Path

from tmft.checkpoint import read_config
from tmft.data import Task
from tmft.errors import InputError
from tmft.files.weights import find
from tmft.runs.folder import finished_run, past_runs, read_result, summary
from tmft.sentence import check_same_model
from tmft.training import Recipe


@dataclass(frozen=True)
class Run:
    """One run of a sweep: where it writes, where its weights come from, and what its scores depend on."""

    sweep: str  # name of all runs that differ in layer and seed only
    folder: Path
    weights: str  # --ckpt, or what --init-from names
    history: list[dict]  # results of the runs that these weights have been through
    num_hidden_layers: int  # of the whole checkpoint
    settings: dict


def plan(args, recipe: Recipe, task: Task) -> list[Run]:
    """All runs that the command line asks for. Raises InputError, before any work, if one cannot be done."""
    if args.name and len(args.ckpt) > 1:
        raise InputError("--name with several --ckpt: leave it out, a sweep is named after its checkpoint")
    runs = []
    for ckpt in args.ckpt:
        folder = find(ckpt, weights=False)
        config = read_config(folder)
        for layer in parse_layers(args.layer, config):
            for seed in parse_seeds(args):
                weights = ckpt
                if args.init_from:
                    weights = args.init_from.replace("{layer}", str(layer)).replace("{seed}", str(seed))
                    check_same_model(find(weights), folder, layer)
                history = past_runs(weights)
                before = [run["data"] for run in history] if args.init_from else []
                random = ["random"] if args.init == "random" else []
                data_name = Path(args.data or args.task).name
                names = [Path(ckpt.partition("@")[0]).name, *random, *before, data_name]
                sweep = args.name or "-".join(names)
                settings = {"ckpt": ckpt, "init": args.init, "layer": layer, "seed": seed}
                settings |= {"init_from": weights if args.init_from else None, "pooling": args.pooling}
                settings |= {"max_length": args.max_length, "task": asdict(task)} | asdict(recipe)
                where = args.runs / f"{sweep}-layer{layer}-seed{seed}"
                finished_run(where, settings)
                runs.append(Run(sweep, where, weights, history, config.num_hidden_layers, settings))
    return runs


def show(runs: list[Run]) -> None:
    """A table for each sweep, from its result.json files. Raises InputError if a run left none."""
    died = [run for run in runs if not (run.folder / "result.json").is_file()]
    for sweep in dict.fromkeys(run.sweep for run in runs):
        results = [read_result(run.folder) for run in runs if run.sweep == sweep and run not in died]
        if results:
            print(f"\n{sweep}\n{summary(results)}")
    if died:
        names = ", ".join(run.folder.name for run in died)
        raise InputError(
            f"{len(died)} of {len(runs)} runs died ({names}): the reasons are above; the same command runs "
            "them again and keeps the others"
        )


def parse_layers(text: str | None, config) -> list[int]:
    """'9' -> [9]; '0-12', '3,6,9' and 'all' -> several; None -> the last."""
    if text is None:
        return [config.num_hidden_layers]
    if text == "all":
        return list(range(config.num_hidden_layers + 1))
    layers = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--layer {text}: write 9, 0-12, 3,6,9 or all")
        layers += range(int(first), int(last or first) + 1)
    return [config.check_layer(layer) for layer in layers]


def parse_seeds(args) -> list[int]:
    if args.seeds < 1:
        raise InputError(f"--seeds {args.seeds}: choose 1 or more")
    return list(range(args.seeds)) if args.seed is None else [args.seed]
