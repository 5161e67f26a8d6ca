"""Choose the layer to keep by short runs (`--layer auto`), which cost an eighth of a sweep over all layers.

Every layer gets an ordinary run with the first seed and an eighth of the epochs of the recipe. Each has its
own folder, so that an interrupted search is resumed. A second, longer round at the best layers, as in
successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943), chose no better layers and is left out.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from tmft.errors import InputError
from tmft.io.formatting import percent
from tmft.runs.result_json import RESULT_FILE, read_result
from tmft.runs.run_config import FineTuningConfig, Run
from tmft.runs.sweeps import Sweep, group_into_sweeps

FRACTION = 1 / 8  # cost of the search, as a fraction of the cost of a sweep over all layers
TIE = 0.005  # difference on dev, not x 100, that may be noise: seeds of one layer often differ as much


def plan_runs(
    ckpts: list[str],
    layers: str | None,
    seeds: list[int],
    base_config: FineTuningConfig,
    make_runs: Callable[..., list[Run]],
    is_main: bool = True,
) -> Iterator[list[Run]]:
    """Yield lists of runs to do. The caller must finish the runs of a list before it requests the next one.

    With layers="auto" there are two lists for each checkpoint: the short runs, and the full runs at the layer
    that is best on dev. With any other value of `layers` (see `parse_layers`) there is one, of all runs.
    make_runs: `expand_grid` with its other arguments already set. is_main: whether this process prints.
    """
    if layers != "auto":
        yield make_runs(ckpts, layers, seeds, base_config)
        return
    for ckpt in ckpts:
        short_runs = make_runs([ckpt], "all", seeds[:1], shorten(base_config), suffix="-search")
        yield short_runs
        sweep = sweep_from_runs(short_runs)
        tied = tied_layers(sweep)
        if is_main:
            scores = ", ".join(f"{layer} ({percent(sweep.mean(layer, 'dev'))})" for layer in tied)
            reason = "is best" if len(tied) == 1 else "cannot be told apart, and the smallest is taken"
            print(f"\n{ckpt}: by dev {sweep.metric}, layer {scores} {reason}; now the full run")
        yield make_runs([ckpt], str(tied[0]), seeds, base_config)


def shorten(config: FineTuningConfig) -> FineTuningConfig:
    """Return the config of a short run: FRACTION of the epochs, or one epoch on a part of the examples."""
    epochs = FRACTION * config.recipe.epochs
    num_epochs = max(1, math.floor(epochs))
    train_fraction = round(config.train_fraction * min(1.0, epochs / num_epochs), 4)
    return replace(config, recipe=replace(config.recipe, epochs=num_epochs), train_fraction=train_fraction)


def tied_layers(sweep: Sweep) -> list[int]:
    """Return the layers whose score on dev is lower than the best one by at most TIE, in increasing order.

    The search takes the first one: a smaller model is as good, as far as this search can tell. Raises
    InputError if no score is defined.
    """
    best_score = sweep.mean(sweep.best_layer, "dev")
    if math.isnan(best_score):
        problem = f"layer auto: dev {sweep.metric} is undefined at each layer ({sweep.name})"
        remedy = "if all embeddings become equal, try a lower `lr`"
        raise InputError(f"{problem}; {remedy}", "layer", "lr")
    return [layer for layer in sweep.layers if best_score - sweep.mean(layer, "dev") <= TIE]


def sweep_from_runs(runs: list[Run]) -> Sweep:
    """Read the results of finished runs that differ only in layer and seed, and return them as a Sweep."""
    [sweep] = group_into_sweeps([(run.folder / RESULT_FILE, read_result(run.folder)) for run in runs])
    return sweep
