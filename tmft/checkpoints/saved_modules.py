"""Read and write the modules after the pooling, whose classes are in tmft/embedding/modules.py."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tmft.checkpoints.st_folder import SavedModule
from tmft.embedding.modules import MODULE_CLASSES
from tmft.errors import InputError, describe_error


def load_modules(saved: list[SavedModule]) -> list[nn.Module]:
    """Return the modules after the pooling, in float32, with their weights."""
    modules: list[nn.Module] = []
    for entry in saved:
        try:
            with torch.device("meta"):  # allocates nothing, whatever sizes config.json claims
                module = MODULE_CLASSES[entry.kind].from_config(entry.config)
            weights = {
                # A copy: a tensor of a file may begin at any address, on which the last bits of sums depend.
                name.removeprefix(module.weight_prefix): weight.float().clone()
                for name, weight in entry.weights.items()
            }
            module.load_state_dict(weights, assign=True)
        except (KeyError, TypeError, RuntimeError) as error:
            raise InputError(
                f"{entry.folder} is not a complete {entry.kind} ({describe_error(error)}): restore its files"
            ) from None
        modules.append(module)
    return modules


def to_saved_modules(modules: Iterable[Any]) -> list[SavedModule]:
    """Return the name, configuration and weights of each of the modules, in the form in which they are saved.

    It is the inverse of load_modules. Raises InputError for a module of another class.
    """
    modules = list(modules)
    if other := [module for module in modules if type(module) not in MODULE_CLASSES.values()]:
        known = ", ".join(MODULE_CLASSES)
        raise InputError(f"a {type(other[0]).__name__} after the pooling cannot be saved: use one of {known}")
    return [
        SavedModule(
            type(module).__name__,
            module.config,
            {module.weight_prefix + name: weight.cpu() for name, weight in module.state_dict().items()},
        )
        for module in modules
    ]
