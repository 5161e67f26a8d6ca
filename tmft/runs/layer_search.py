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

from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.formatting import percent
from tmft.runs.result_schema import read_result
from tmft.runs.run_config import FineTuningConfig, Run
from tmft.runs.sweeps import Sweep, group_into_sweeps

ROUND_BUDGET = 1 / 8  # cost of each of the two rounds, as a fraction of the cost of a sweep over all layers
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

    base_config: the settings of the full runs; ckpt, layer and seed are replaced. make_runs: `expand_grid`
    with its arguments data, output_dir and run_name already set. processes: rank 0 prints the layer found.
    """
    if layers != "auto":
        yield make_runs(ckpts, layers, seeds, base_config)
        return
    for ckpt in ckpts:
        trial_config = scale_budget(base_config, ROUND_BUDGET)
        first_round = make_runs([ckpt], "all", seeds[:1], trial_config, suffix="-search1")
        yield first_round
        sweep = sweep_from_runs(first_round)
        survivors = sorted(sweep.best_layers[:SURVIVORS])
        budget = min(1.0, ROUND_BUDGET * sum(sweep.layers) / max(1, sum(survivors)))  # equal layer-epochs
        trial_config = scale_budget(base_config, budget)
        candidates = ",".join(map(str, survivors))
        second_round = make_runs([ckpt], candidates, seeds[:1], trial_config, suffix="-search2")
        yield second_round
        sweep = sweep_from_runs(second_round)
        best_layer = sweep.best_layer
        if processes.rank == 0:
            print(
                f"\n{ckpt}: layer {best_layer} of {', '.join(map(str, survivors))} is best, "
                f"dev {sweep.metric} {percent(sweep.mean(best_layer, 'dev'))}; now the full run"
            )
        yield make_runs([ckpt], str(best_layer), seeds, base_config)


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
    """Read the results of the runs of one round, and return them as a Sweep.

    Raises InputError if a folder holds the result of another sweep.
    """
    sweeps = group_into_sweeps([(run.folder / "result.json", read_result(run.folder)) for run in runs])
    if len(sweeps) != 1 or len(sweeps[0].layers) < len(runs):
        raise InputError(
            f"{runs[0].folder} and the folders of the next layers do not belong to one search (result.json): "
            "remove them"
        )
    return sweeps[0]
