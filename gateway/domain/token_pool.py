"""The tokens that requests may need of a memory that all slots of a server share (llama-server's unified KV cache): if
they need more than it has, the server ends all of them. Pure. All numbers are tokens, unless they are slots.

A request reserves its prompt and the most that its answer may have. Where the client set no limit, the answer gets
what is left of an even share of the pool, and at least a quarter of a share; that is then sent as its limit, because an
answer without end would take the answers of all others with it.
"""

from __future__ import annotations

MARGIN = 16  # a sixteenth of the pool is kept for what no request reserves: canaries, and prompts that count more
ANSWER_PART = 4  # an answer without a limit gets at least this part of a share


def share_of(pool: int, slots: int) -> int:
    """What each of the slots has if all are used alike. At least 1."""
    return max(1, usable(pool) // max(1, slots))


def usable(pool: int) -> int:
    return pool - pool // MARGIN


def answer_most(prompt: int, pool: int, slots: int) -> int:
    """The limit of an answer that the client did not limit."""
    share = share_of(pool, slots)
    return max(1, share // ANSWER_PART, share - prompt)


def needed(prompt: int, limit: int | None, answers: int, pool: int, slots: int) -> int:
    """What a request reserves: `answers` sequences continue one prompt, each with `limit` tokens at most (None = the
    client set no limit). Never more than the pool: a request that needs all of it may have it alone."""
    most = answer_most(prompt, pool, slots) if limit is None else limit
    return min(usable(pool), prompt + answers * most)


def has_room(need: int, reserved: int, others: int, pool: int, slots: int) -> bool:
    """May a request that needs so much be sent beside those that have `reserved`, and beside `others`: sequences of
    which nothing else is known, so each counts as a share? Beside nothing it may always be sent."""
    taken = reserved + others * share_of(pool, slots)
    return not taken or taken + need <= usable(pool)
