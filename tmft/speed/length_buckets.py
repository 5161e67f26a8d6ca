"""How many sentences to encode at a time, and which ones together."""

from collections.abc import Iterator


def length_bucketed_batches(
    lengths: list[int], tokens_per_batch: int, row_width: int
) -> Iterator[tuple[list[int], int]]:
    """Yield (numbers of sentences, width of their rows), about tokens_per_batch tokens each.

    Sentences longer than row_width, longest first, with others of like length in rows made to measure. The
    rest is dealt out like cards, so that each batch has short ones to fill the rows of the long ones: 97 % of
    the places of STSB then hold a token, and all batches have nearly one shape.
    """
    order = sorted(range(len(lengths)), key=lambda s: -lengths[s])
    start = 0
    while start < len(order) and lengths[order[start]] > row_width:
        longest = lengths[order[start]]
        batch = order[start : start + max(1, tokens_per_batch // longest)]
        batch = [s for s in batch if lengths[s] > row_width]
        yield batch, -(-longest // 8) * 8
        start += len(batch)
    rest = order[start:]
    count = -(-sum(lengths[s] for s in rest) // tokens_per_batch) or min(1, len(rest))  # of empty ones: one
    for number in range(count):
        yield rest[number::count], row_width
