"""The answer of exercise 5."""

import torch


def distill(
    teacher, student, optimizer, lines: list[str], held_out: list[str], epochs: int = 2, batch_size: int = 64
) -> None:
    """A student that has seen the test sentences scores too high on them, without a label among its lines."""
    excluded = {sentence.strip().lower() for sentence in held_out}
    kept = [line for line in lines if line.strip().lower() not in excluded]
    for _ in range(epochs):
        for batch in torch.randperm(len(kept)).split(batch_size):
            texts = [kept[i] for i in batch]
            with torch.no_grad():
                target = teacher.embed(texts)
            loss = (1 - torch.cosine_similarity(student.embed(texts), target)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
