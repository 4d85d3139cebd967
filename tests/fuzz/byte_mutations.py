"""Mutations of bytes, whatever they mean."""

from __future__ import annotations

import random


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return ``content`` with bits turned, cut short, or with pieces put elsewhere."""
    if not content:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40)))
    changed = bytearray(content)
    action = rng.randrange(6)
    if action == 0:
        for _ in range(rng.choice([1, 1, 2, 8])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif action == 1:
        del changed[rng.randrange(len(changed)) :]
    elif action == 2:  # a splice
        a, b = sorted(rng.randrange(len(changed) + 1) for _ in range(2))
        at = rng.randrange(len(changed) + 1)
        changed[at:at] = content[a : min(b, a + 4096)]
    elif action == 3:
        a = rng.randrange(len(changed))
        del changed[a : a + rng.choice([1, 8, 100])]
    elif action == 4:  # a field of a header
        a = rng.randrange(min(len(changed), 200))
        changed[a : a + 4] = rng.choice([b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"])
    else:
        changed.extend(rng.choice([b"\0", b"\n", b"}", b"\xff" * 100, content[:100]]))
    return bytes(changed)
