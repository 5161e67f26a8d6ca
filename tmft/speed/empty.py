"""Building a model whose weights come from a file: nobody needs to draw random ones first."""

from torch.overrides import TorchFunctionMode


class no_initialisation(TorchFunctionMode):  # noqa: N801
    """Inside this context torch.nn.init does nothing (on the meta device it would take a second)."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))
