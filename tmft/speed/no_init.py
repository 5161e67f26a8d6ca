"""Build a model without initializing its weights, because they are loaded from a file afterwards."""

import gc
from typing import Any

from torch.overrides import TorchFunctionMode


class no_init_weights(TorchFunctionMode):  # noqa: N801
    """Inside a with block, the functions of torch.nn.init do nothing and Python's garbage collector is off.

    Initialization would take a second even on the meta device. Building a model creates many objects and
    frees none, so that garbage collections, of 70 ms each if torch is imported, would be wasted.
    """

    gc_was_enabled: bool

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        self.gc_was_enabled = gc.isenabled()
        gc.disable()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.gc_was_enabled:
            gc.enable()
        return super().__exit__(*error)
