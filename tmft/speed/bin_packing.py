"""Best-fit decreasing bin packing of sentences into the rows of a batch.

Each sentence could have its own row instead; the embeddings would be the same.
"""

import numpy as np


def bin_pack(lengths: np.ndarray, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, columns), (S,) int64 each: the row and the column of the first token of each sentence.

    lengths: (S,) int64, the number of tokens of each sentence, at most T. T: tokens in a row. Sentences are
    placed from long to short, each into the fullest row in which it fits; this needs few rows.
    """
    rows_with_room: list[list[int]] = [
        [] for _ in range(T + 1)
    ]  # rows_with_room[n]: the rows with n free columns
    nonempty = 0  # bit n is set if rows_with_room[n] is not empty, to find the fullest fitting row at once
    num_rows = 0
    rows, columns = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    for s, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = nonempty >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1  # the lowest bit that is set
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                nonempty ^= 1 << room
        else:
            room, row, num_rows = T, num_rows, num_rows + 1
        rows[s], columns[s] = row, T - room
        rows_with_room[room - length].append(row)
        nonempty |= 1 << (room - length)
    return rows, columns
