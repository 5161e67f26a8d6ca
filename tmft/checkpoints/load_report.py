"""What happened to every tensor in the files of a checkpoint."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """Which tensors of a checkpoint were loaded, and why each of the others was not."""

    depth: str  # "9 of 12 layers"
    num_parameters: int = 0  # in the loaded tensors
    loaded: dict[str, str] = field(default_factory=dict)  # name of a parameter -> name in the checkpoint
    truncated: int = 0  # number of tensors in removed layers
    ignored_heads: Counter = field(default_factory=Counter)  # name of a head -> number of its tensors

    def __str__(self) -> str:
        """A line for the log, such as "loaded the embeddings and 9 of 12 layers: ...; not loaded: ..."."""
        not_loaded = [f"{self.truncated} tensors of the layers above"] if self.truncated else []
        not_loaded += [f"{name} ({count})" for name, count in self.ignored_heads.items()]
        loaded = f"{len(self.loaded)} tensors, {self.num_parameters:,} parameters"
        ignored = ", ".join(not_loaded) or "nothing"
        return f"loaded the embeddings and {self.depth}: {loaded}; not loaded: {ignored}"
