"""Mutations of safetensors files: the length and the JSON that they begin with."""

from __future__ import annotations

import random

from fuzz.json_mutations import mutate_json


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Return a file like ``content`` with another header."""
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    action = rng.randrange(6)
    if action == 0:
        wrong = rng.choice([0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1])
        return wrong.to_bytes(8, "little") + header + data
    if action == 1:
        data = data[: rng.randrange(len(data) + 1)]
    elif action == 2:
        data += bytes(rng.choice([1, 8, 1000]))
    else:
        header = mutate_json(header.decode().strip(), rng)
    return len(header).to_bytes(8, "little") + header + data
