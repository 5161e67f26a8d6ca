"""Build a model without initializing its weights, because they are loaded from a file afterwards."""

import gc

from torch.overrides import TorchFunctionMode


class no_init_weights(TorchFunctionMode):  # noqa: N801
    """Inside a with block, the functions of torch.nn.init do nothing and Python's garbage collector is off.

    Initialization would take a second even on the meta device. Building a model creates many objects and
    frees none, so that garbage collections, of 70 ms each if torch is imported, would be wasted.
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
