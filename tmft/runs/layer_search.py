"""--layer auto: the layer to keep, found by short runs at every layer, the best of which are run longer.

Each is a run like any other, with fewer epochs on a share of the examples, in a folder of its own, so that a
search that was stopped goes on, and anybody can repeat a line of it. It is judged on dev. What training costs
goes by layer-epochs: a run at layer l has l for each epoch. Source: successive halving, Jamieson and
Talwalkar 2016, arXiv:1502.07943.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.formatting import percent
from tmft.runs.result_schema import read_result
from tmft.runs.run_config import FineTuningConfig, Run
from tmft.runs.sweeps import Sweep, sweeps_of

ROUND = 1 / 8  # of the layer-epochs of a sweep, for each of the two rounds
BEST = 3  # layers of the second


def stages(
    ckpts: list[str],
    layers: str | None,
    seeds: list[int],
    like: FineTuningConfig,
    planned: Callable[..., list[Run]],
    processes: Processes,
) -> Iterator[list[Run]]:
    """The runs to be done, all at once; of layers "auto" for each checkpoint first the rounds of a search.

    planned: plan() with its other arguments. The search is with the first seed, and its runs are named for
    it. When the next list is asked for, the runs of the last one have finished.
    """
    if layers != "auto":
        yield planned(ckpts, layers, seeds, like)
        return
    for ckpt in ckpts:
        first = planned([ckpt], "all", seeds[:1], round_of(like, ROUND), mark="-search1")
        yield first
        sweep = sweep_of(first)
        best = sorted(sweep.best_layers[:BEST])
        again = min(1.0, ROUND * sum(sweep.layers) / max(1, sum(best)))  # as many layer-epochs
        layers = ",".join(map(str, best))
        second = planned([ckpt], layers, seeds[:1], round_of(like, again), mark="-search2")
        yield second
        sweep = sweep_of(second)
        chosen = sweep.best_layer
        if processes.rank == 0:
            print(f"\n{ckpt}: layer {chosen} of {', '.join(map(str, best))}, dev {sweep.metric} "
                  f"{percent(sweep.mean(chosen, 'dev'))}; now the whole run")  # fmt: skip
        yield planned([ckpt], str(chosen), seeds, like)


def round_of(like: FineTuningConfig, part: float) -> FineTuningConfig:
    """The same with a part of its epochs; what is left of one is a share of the examples."""
    epochs = part * like.recipe.epochs
    whole = max(1, math.floor(epochs))
    share = like.share * min(1.0, epochs / whole)
    return replace(like, recipe=replace(like.recipe, epochs=whole), share=round(share, 4))


def sweep_of(runs: list[Run]) -> Sweep:
    sweeps = sweeps_of([(run.folder / "result.json", read_result(run.folder)) for run in runs])
    if len(sweeps) != 1 or len(sweeps[0].layers) < len(runs):
        raise InputError(f"{runs[0].folder} and the next are not of one search (result.json): remove them")
    return sweeps[0]
