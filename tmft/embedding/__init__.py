"""How tokens become an embedding, beyond one hidden state and its mean."""
