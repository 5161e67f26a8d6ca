"""Build a model without initializing its weights, when they are loaded from a file anyway."""

import gc

from torch.overrides import TorchFunctionMode


class no_init_weights(TorchFunctionMode):  # noqa: N801
    """Inside this context torch.nn.init does nothing, and Python's garbage collector is off.

    Initialization would take a second even on the meta device. Loading creates many objects and frees none,
    and a collection that walks through all of torch takes 70 ms.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))

    def __enter__(self):
        self.gc_was_enabled = gc.isenabled()
        gc.disable()
        return super().__enter__()

    def __exit__(self, *error):
        if self.gc_was_enabled:
            gc.enable()
        return super().__exit__(*error)
