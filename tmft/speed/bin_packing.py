"""Which sentence goes into which row. Without it: each into a row of its own, and all else stays as it is."""

import numpy as np


def bin_pack(lengths: np.ndarray, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentences of these lengths into rows of T places: longest first, each where the least room remains.

    -> row and column of the first token of each sentence, both (S,). (Best-fit decreasing bin packing.)
    """
    rows_with_room = [[] for _ in range(T + 1)]  # rows with r free places, for each r
    some = 0  # bit r is set where rows_with_room[r] has any, so that the fitting r is found at once
    count = 0
    row, column = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    for s, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = some >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1  # the lowest bit that is set
            number = rows_with_room[room].pop()
            if not rows_with_room[room]:
                some ^= 1 << room
        else:
            room, number, count = T, count, count + 1
        row[s], column[s] = number, T - room
        left = room - length
        rows_with_room[left].append(number)
        some |= 1 << left
    return row, column
