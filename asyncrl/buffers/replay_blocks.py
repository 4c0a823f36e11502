"""Deals the rows of a saved replay to stripes of another layout (other workers, splits or environments).

A column is one environment of one stripe. Saved columns are cut into blocks of consecutive rows. Behind each block
follows one more row, which holds the observation after its last step and starts no transition. So no transition leads
from one block into the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MOST_ROWS = 256  # of a block: one row in 256 is lost to the observation behind it
_BLOCKS_PER_COLUMN = 4  # at least, so that columns have about equal lengths


class Block(NamedTuple):
    """The rows `start` to `stop` of environment `env` of the saved stripe `split`."""

    split: int
    env: int
    start: int
    stop: int


def deal_blocks(lengths: Sequence[int], num_envs: int, num_columns: int, room: int) -> list[list[Block]]:
    """Chooses the blocks of each new column, oldest first.

    The newest rows are dealt first, each block to the column that has the fewest rows, until one finds no room. So
    columns are about equally long, their rows are in order of age, and the oldest are left out.

    Args:
        lengths: rows of each saved stripe.
        num_envs: environments of each saved stripe.
        num_columns: new columns.
        room: rows that a new column can have, including those behind blocks.
    """
    most_used = min(sum(lengths) * num_envs // num_columns, room)
    size = max(1, min(most_used // _BLOCKS_PER_COLUMN - 1, _MOST_ROWS))
    columns: list[list[Block]] = [[] for _ in range(num_columns)]
    used = [0] * num_columns
    for age in range(0, max(lengths), size):
        for split, length in enumerate(lengths):
            for env in range(num_envs if age < length else 0):
                column = used.index(min(used))
                block = Block(split, env, max(0, length - age - size), length - age)
                used[column] += rows_of([block])
                if used[column] > room:
                    return [blocks[::-1] for blocks in columns]
                columns[column].append(block)
    return [blocks[::-1] for blocks in columns]


def rows_of(blocks: Sequence[Block]) -> int:
    """Rows that these blocks take in a column."""
    return sum(block.stop - block.start + 1 for block in blocks)
