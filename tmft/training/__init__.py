"""Fine-tuning: the loop, and what plugs into it."""
