"""What became of every tensor in the files of a checkpoint."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """Which tensors of the file became part of the encoder, and why each of the others did not."""

    layers: str  # "9 of 12 layers"
    parameters: int = 0
    kept: dict[str, str] = field(default_factory=dict)  # our name -> name in the file
    above: int = 0  # tensors of layers that were cut off
    heads: Counter = field(default_factory=Counter)  # name of a head -> number of its tensors

    def __str__(self) -> str:
        left = [f"{self.above} tensors of the layers above"] if self.above else []
        left += [f"{name} ({count})" for name, count in self.heads.items()]
        kept = f"{len(self.kept)} tensors, {self.parameters:,} parameters"
        return f"kept the embeddings and {self.layers}: {kept}; left {', '.join(left) or 'nothing'}"
