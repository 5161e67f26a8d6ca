"""Plan a sweep, which is a run for each checkpoint, layer and seed; check its options, and do the runs."""

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.st_folder import check_static_settings
from tmft.encoder import EncoderConfig
from tmft.errors import InputError, describe_error
from tmft.io.distributed import Processes
from tmft.runs.result_json import read_provenance
from tmft.runs.run_config import FineTuningConfig, Run
from tmft.runs.run_folder import check_run_name, check_same_on_all_processes, reserve_folder
from tmft.runs.sweeps import checkpoint_name, sweep_summaries


def expand_grid(
    ckpts: Sequence[str],
    layers: str | None,
    seeds: Sequence[int],
    base_config: FineTuningConfig,
    data: str,
    output_dir: Path,
    run_name: str | None = None,
    suffix: str = "",
) -> list[Run]:
    """Return one run for each combination of checkpoint, layer and seed; download the checkpoints.

    layers: see `parse_layers`. base_config: the settings that all runs share; its ckpt, layer and seed are
    replaced. data: name of the data. run_name: name of the sweep; None: checkpoint and data. suffix: text
    that is appended to both names.
    Raises InputError, before any run begins, if one of them is not possible.
    """
    if run_name and len(ckpts) > 1:
        raise InputError(
            "run_name with several values of `ckpt`: remove run_name, each sweep is named after its "
            "checkpoint",
            "run_name",
            "ckpt",
            "run_name",
        )
    check_run_name(run_name)
    if base_config.keep_layers and layers:
        raise InputError("keep_layers and `layer`: give only one of the two", "keep_layers", "layer")
    runs: list[Run] = []
    reserved: dict[Path, str | None] = {}
    for ckpt in ckpts:
        original = ModelFolder.open(ckpt, weights=False)
        config = original.config()
        if original.is_static:
            check_static_settings(base_config.pooling or "mean", bool(base_config.token_weights))
        kept, num_layers = base_config.keep_layers, config.num_hidden_layers
        if kept and kept[-1] >= num_layers:
            problem = f"keep_layers {kept[-1]}: this checkpoint has {num_layers} layers"
            raise InputError(f"{problem}, choose from 0 to {num_layers - 1}", "keep_layers")
        depths = [len(kept)] if kept else parse_layers(layers, config)  # before weights are downloaded
        needs_weights = not (base_config.init_from or base_config.init == "random")
        ckpt_folder = ModelFolder.open(ckpt) if needs_weights else original
        for layer, seed in product(depths, seeds):
            run_config = replace(base_config, ckpt=ckpt, layer=layer, seed=seed)
            init_folder = ckpt_folder
            if base_config.init_from:
                init_from = base_config.init_from.replace("{layer}", str(layer))
                init_from = init_from.replace("{seed}", str(seed))
                run_config = replace(run_config, init_from=init_from)
                init_folder = ModelFolder.open(init_from)
                check_same_model(init_folder, original, layer)
            provenance = read_provenance(init_folder.path)
            sweep = (run_name or default_sweep_name(run_config, provenance, data)) + suffix
            folder = output_dir / f"{sweep}-layer{layer}-seed{seed}"
            reserve_folder(folder, ckpt, run_config.to_flat_dict(), reserved)
            runs.append(
                Run(
                    config=run_config,
                    sweep=sweep,
                    folder=folder,
                    data=data + suffix,
                    init_folder=init_folder,
                    checkpoint_digests=init_folder.digests(weights=run_config.init != "random"),
                    provenance=provenance,
                    num_hidden_layers=num_layers,
                )
            )
    return runs


def default_sweep_name(config: FineTuningConfig, provenance: list[dict[str, Any]], data: str) -> str:
    """Return the name of a sweep: "electra-base-discriminator-stsb", after wordsim "...-wordsim-stsb"."""
    names = [checkpoint_name(config.ckpt)]
    if config.keep_layers:
        names.append(f"keep{'+'.join(map(str, config.keep_layers))}")
    if config.init == "random":
        names.append("random")
    if config.init_from:
        names += [earlier_run["data"] for earlier_run in provenance]
    return "-".join([*names, data])


def run_all(runs: list[Run], processes: Processes, run_once: Callable[[Run], None]) -> None:
    """Do all runs; several processes divide them; afterwards rank 0 prints a table for each sweep.

    A run that fails does not stop the others; an InputError at the end names all that failed.
    """
    if processes.world_size > 1:
        processes.check_shared_folder(runs[0].folder.parent)  # the main process reads the results of all
        check_same_on_all_processes(
            {run.config.init_from or run.config.ckpt: run.checkpoint_digests for run in runs}, processes
        )
    failed = []  # folders of this process
    for run in runs[processes.rank :: processes.world_size]:
        try:
            run_once(run)
        except Exception as error:
            if len(runs) == 1:
                raise
            if not isinstance(error, InputError):
                traceback.print_exc()
            print(f"{run.folder}: failed: {describe_error(error)}", flush=True)
            failed.append(run.folder)
    processes.barrier()
    failed = [folder for folders in processes.all_gather_object(failed) for folder in folders]
    if processes.rank == 0:
        print(*sweep_summaries([run.folder for run in runs]), sep="\n")
        if failed:
            raise InputError(
                f"{len(failed)} of {len(runs)} runs failed ({', '.join(folder.name for folder in failed)}): "
                "the reasons are above; the same command runs them again and keeps the others"
            )


def parse_layers(text: str | None, config: EncoderConfig) -> list[int]:
    """Parse the numbers of layers to keep: "9" -> [9], "3,6,9" -> [3, 6, 9], "0-2" -> [0, 1, 2].

    "all" means every number from 0 to the number of layers of the checkpoint, None only the last of these.
    Each number is returned once. Raises InputError if the text has another form or the checkpoint has too few
    layers.
    """
    if text is None:
        return [config.num_hidden_layers]
    if text == "all":
        return list(range(config.num_hidden_layers + 1))
    ranges = parse_layer_ranges(text)
    for number in (end for layers in ranges for end in (layers.start, layers.stop - 1)):
        config.resolve_num_layers(number)  # has the checkpoint as many?
    return list(dict.fromkeys(layer for layers in ranges for layer in layers))


def parse_layer_ranges(text: str) -> list[range]:
    """Return the ranges in a text, "3,6-8" -> [range(3, 4), range(6, 9)]. Raises InputError for others."""
    matches = [re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", word) for word in text.split(",")]
    ranges = [range(int(match[1]), int(match[2] or match[1]) + 1) for match in matches if match]
    if len(ranges) < len(matches):
        raise InputError(f"layer {text}: write 9, 0-12, 3,6,9, all or auto", "layer")
    if not any(ranges):
        raise InputError(f"layer {text}: the first number must be the smaller one", "layer")
    return ranges


def check_same_model(folder: ModelFolder, original: ModelFolder, layer: int) -> None:
    """Check by config.json that `folder` holds the first layers of the original checkpoint."""
    config, expected = (asdict(one.config()) for one in (folder, original))
    for key, value in (expected | {"num_hidden_layers": layer}).items():
        if config.get(key) != value:
            raise InputError(
                f"{folder.name} has {key} {config.get(key)}, not {value}: name a run of {original.name} at "
                f"layer {layer}"
            )
