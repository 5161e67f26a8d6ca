"""Find the layer to keep with short runs (`--layer auto`): two rounds of successive halving.

The first round does a short run at every layer, the second round a longer one at each of the best layers.
The best layer of the second round is then trained in full. These short runs, the trials, are ordinary runs
with fewer epochs on a random part of the training data. Each has its own folder, so an interrupted search can
be resumed, and a single trial can be repeated by hand. Trials are compared by their scores on dev. The cost
of training is counted in layer-epochs: a run that keeps l layers costs l for each epoch.
Source: successive halving, Jamieson and Talwalkar 2016, arXiv:1502.07943.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from tmft.errors import InputError
from tmft.io.distributed import Processes
from tmft.io.formatting import format_duration, percent
from tmft.runs.result_json import RESULT_FILE, read_result
from tmft.runs.run_config import FineTuningConfig, Run
from tmft.runs.sweeps import Sweep, group_into_sweeps

ROUND_BUDGET = 1 / 8  # cost of each of the two rounds, as a fraction of the cost of a sweep over all layers
TIE = 0.005  # difference on dev, not x 100, that may be noise: seeds of one layer often differ as much
SURVIVORS = 3  # number of layers in the second round


def search_rounds(
    ckpts: list[str],
    layers: str | None,
    seeds: list[int],
    base_config: FineTuningConfig,
    make_runs: Callable[..., list[Run]],
    processes: Processes,
) -> Iterator[list[Run]]:
    """Yield lists of runs to do. The caller must finish the runs of a list before it requests the next one.

    With layers="auto" there are three lists for each checkpoint: the two rounds of the search, which use only
    the first seed, and the full runs at the layer that was found, with all seeds. With any other value of
    `layers` (see `parse_layers`) there is one list, which has all runs.
    make_runs: `expand_grid` with its arguments data, output_dir and run_name already set.
    """
    if layers != "auto":
        yield make_runs(ckpts, layers, seeds, base_config)
        return
    for ckpt in ckpts:
        candidates, budget, seconds = "all", ROUND_BUDGET, 0.0
        for suffix in ("-search1", "-search2"):
            trial_config = scale_budget(base_config, budget)
            trials = make_runs([ckpt], candidates, seeds[:1], trial_config, suffix=suffix)
            yield trials
            sweep = sweep_from_runs(trials)
            if math.isnan(sweep.mean(sweep.best_layer, "dev")):
                problem = f"layer auto: dev {sweep.metric} is undefined at each layer ({sweep.name})"
                remedy = "if all embeddings become equal, try a lower `lr`"
                raise InputError(f"{problem}; {remedy}", "layer", "lr")
            seconds += sum(result["seconds"] for results in sweep.layers.values() for result in results)
            survivors = sorted(sweep.best_layers[:SURVIVORS])
            candidates = ",".join(map(str, survivors))
            budget = min(1.0, ROUND_BUDGET * sum(sweep.layers) / max(1, sum(survivors)))  # equal layer-epochs
        tied = tied_layers(sweep)
        if processes.rank == 0:
            choice, duration = describe_choice(sweep, tied), format_duration(seconds)
            print(f"\n{ckpt}: {choice}; its runs took {duration}, now the full run")
        yield make_runs([ckpt], str(tied[0]), seeds, base_config)


def tied_layers(sweep: Sweep) -> list[int]:
    """Return the layers whose score on dev is lower than the best one by at most TIE, in increasing order.

    The search takes the first one: a smaller model is as good, as far as this search can tell.
    """
    best_score = sweep.mean(sweep.best_layer, "dev")
    tied = {layer for layer in sweep.layers if best_score - sweep.mean(layer, "dev") <= TIE}
    return sorted(tied | {sweep.best_layer})


def describe_choice(sweep: Sweep, tied: list[int]) -> str:
    """Return a sentence about the layer that was chosen. tied: see `tied_layers`."""
    layers = ", ".join(map(str, sweep.layers))
    scores = {layer: percent(sweep.mean(layer, "dev")) for layer in tied}
    if len(tied) == 1:
        return f"layer {tied[0]} of {layers} is best, dev {sweep.metric} {scores[tied[0]]}"
    listed = ", ".join(f"{layer} ({score})" for layer, score in scores.items())
    return (
        f"layers {listed} of {layers} cannot be told apart, their dev {sweep.metric} differs by at most "
        f"{percent(TIE)}: layer {tied[0]}, the smallest, is taken"
    )


def scale_budget(config: FineTuningConfig, fraction: float) -> FineTuningConfig:
    """Return the config of a trial that costs about this fraction of a full run.

    The number of epochs is scaled and rounded down, to at least one. If not even one epoch is left, the
    fraction of the training examples is reduced, too.
    """
    epochs = fraction * config.recipe.epochs
    num_epochs = max(1, math.floor(epochs))
    train_fraction = config.train_fraction * min(1.0, epochs / num_epochs)
    recipe = replace(config.recipe, epochs=num_epochs)
    return replace(config, recipe=recipe, train_fraction=round(train_fraction, 4))


def sweep_from_runs(runs: list[Run]) -> Sweep:
    """Read the results of the runs of one round, and return them as a Sweep."""
    [sweep] = group_into_sweeps([(run.folder / RESULT_FILE, read_result(run.folder)) for run in runs])
    return sweep
