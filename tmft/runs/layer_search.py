"""Find the layer to keep with short runs (`--layer auto`): two rounds of successive halving.

The first round runs every layer, the second one runs the best of them longer; the best layer of the second
round is then run in full. Every trial is an ordinary run with fewer epochs on a subset of the training data,
in its own folder, so an interrupted search resumes and each trial can be reproduced by hand. Trials are
compared on dev. The cost of training is counted in layer-epochs: a run at layer l costs l for each epoch.
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

ROUND_BUDGET = 1 / 8  # layer-epochs of each of the two rounds, as a fraction of those of a sweep
SURVIVORS = 3  # layers in the second round


def search_rounds(
    ckpts: list[str],
    layers: str | None,
    seeds: list[int],
    base_config: FineTuningConfig,
    make_runs: Callable[..., list[Run]],
    processes: Processes,
) -> Iterator[list[Run]]:
    """Yield lists of runs; the runs of a list must have finished when the next list is requested.

    With `layers` other than "auto" there is one list with all runs. With "auto" there are three for each
    checkpoint: the two rounds of the search, with the first seed, and the runs at the layer that was found,
    with all seeds. make_runs: expand_grid with its other arguments.
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
    """Return the config of a trial with a fraction of the epochs, at least one.

    What is left of an epoch after rounding down is taken from the fraction of the training examples.
    """
    epochs = fraction * config.recipe.epochs
    num_epochs = max(1, math.floor(epochs))
    train_fraction = config.train_fraction * min(1.0, epochs / num_epochs)
    recipe = replace(config.recipe, epochs=num_epochs)
    return replace(config, recipe=recipe, train_fraction=round(train_fraction, 4))


def sweep_from_runs(runs: list[Run]) -> Sweep:
    """Read the results of a round. Raise InputError if a folder holds the result of another sweep."""
    sweeps = group_into_sweeps([(run.folder / "result.json", read_result(run.folder)) for run in runs])
    if len(sweeps) != 1 or len(sweeps[0].layers) < len(runs):
        raise InputError(
            f"{runs[0].folder} and the folders of the next layers do not belong to one search (result.json): "
            "remove them"
        )
    return sweeps[0]
