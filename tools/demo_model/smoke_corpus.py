"""A corpus for the smoke run that needs no download: sentences from a small grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .corpus import Document

__all__ = ["write_smoke_corpus"]

_WHO = ("The captain", "A gardener", "My neighbour", "The old clockmaker", "Her cousin", "A poet")
_DID = ("carried", "painted", "mended", "counted", "admired", "forgot", "described", "sold")
_WHAT = ("a lantern", "three chairs", "the blue map", "a quiet letter", "seven apples", "the gate")
_WHERE = ("by the river", "in the morning", "near the harbour", "before dinner", "after the rain")
_SOURCES = ("austen", "shakespeare", "factbook", "sqlite", "gsm8k")


def write_smoke_corpus(path: Path, seed: int = 0) -> None:
    """Write documents of every source and split, in the format of the real corpus."""
    with path.open("w", encoding="utf-8") as stream:
        for document in _documents(random.Random(seed)):
            stream.write(json.dumps(asdict(document)) + "\n")


def _documents(rng: random.Random) -> Iterator[Document]:
    for source in _SOURCES:
        for split, count in (("train", 12), ("heldout", 2)):
            for number in range(count):
                yield Document(source, f"{split}-{number}", split, _text(rng))
    for number in range(20):
        yield Document("wordnet", f"domain-{number}", "domain", _text(rng).lower())


def _text(rng: random.Random) -> str:
    return " ".join(
        f"{rng.choice(_WHO)} {rng.choice(_DID)} {rng.choice(_WHAT)} {rng.choice(_WHERE)}."
        for _ in range(120)
    )
