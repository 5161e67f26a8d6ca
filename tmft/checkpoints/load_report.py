"""LoadReport: which tensors of a checkpoint were loaded, and why the others were not."""

from collections import Counter
from dataclasses import dataclass, field

import torch


@dataclass
class LoadReport:
    """Which tensors of a checkpoint were loaded; the others belong to removed layers or to known heads."""

    depth: str  # the loaded layers, such as "9 of 12 layers"
    num_parameters: int = 0  # number of elements of the loaded tensors
    dtype: torch.dtype = torch.float32  # of the encoder, not of the file
    loaded: dict[str, str] = field(default_factory=dict)  # name of a parameter -> name of its tensor
    truncated: int = 0  # number of tensors in removed layers
    ignored_heads: Counter[str] = field(default_factory=Counter)  # name of a head -> number of its tensors

    def __str__(self) -> str:
        """Return one line for the log: "loaded the embeddings and 9 of 12 layers: ...; not loaded: ..."."""
        not_loaded = [f"{self.truncated} tensors of the layers above"] if self.truncated else []
        not_loaded += [f"{name} ({count})" for name, count in self.ignored_heads.items()]
        loaded = f"{len(self.loaded)} tensors, {self.num_parameters:,} parameters"
        if self.dtype != torch.float32:
            loaded += f" in {str(self.dtype).removeprefix('torch.')}"
        ignored = ", ".join(not_loaded) or "nothing"
        return f"loaded the embeddings and {self.depth}: {loaded}; not loaded: {ignored}"
