"""Options of a sentence embedding: mixes of layers, token weights, prompts, modules after the pooling."""
