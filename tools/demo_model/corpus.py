"""Build the corpus: one JSON line per document, each assigned to a split by its name."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from .fetch import fetch
from .sources import SOURCES, tidy

__all__ = ["Document", "build_corpus", "read_corpus", "split_of"]

# Never trained on: what the model does with text of a kind that it has not seen.
HELD_OUT_SOURCE = "wordnet"
# One document in this many is held out, whole.
HOLD_OUT_EVERY = 24


@dataclass(frozen=True)
class Document:
    """A chapter, play, country, page or problem."""

    source: str
    name: str
    split: str
    text: str


def split_of(source: str, name: str) -> str:
    """Return ``"train"``, ``"heldout"`` or ``"domain"``; depends on the name alone."""
    if source == HELD_OUT_SOURCE:
        return "domain"
    digest = hashlib.sha256(f"{source}/{name}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % HOLD_OUT_EVERY == 0 else "train"


def build_corpus(downloads: Path, target: Path) -> Counter[str]:
    """Write every source's documents to `target`; return the bytes per source and split."""
    size: Counter[str] = Counter()
    partial = target.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as stream:
        for source, read in SOURCES.items():
            for name, raw in read(fetch(source, downloads)):
                document = Document(source, name, split_of(source, name), tidy(raw))
                stream.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
                size[f"{source} {document.split}"] += len(document.text.encode())
    os.replace(partial, target)
    return size


def read_corpus(path: Path) -> list[Document]:
    """Read what `build_corpus` wrote."""
    with path.open(encoding="utf-8") as stream:
        return [Document(**json.loads(line)) for line in stream]
