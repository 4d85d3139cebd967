"""Everything that is fuzzed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fuzz.argument_kinds import ARGUMENT_KINDS
from fuzz.file_kinds import FILE_KINDS


class FuzzKind(Protocol):
    """Something that takes input from outside."""

    @property
    def weight(self) -> float:
        """How many of its cases are run, compared to others."""

    def case(self, name: str, seed: int | None, folder: Path) -> Callable[[], Any]:
        """Prepare the case of ``seed`` in ``folder`` and return what runs it.

        Without a seed nothing is damaged.
        """


KINDS: dict[str, FuzzKind] = {**FILE_KINDS, **ARGUMENT_KINDS}


def shares(names: list[str], count: int) -> dict[str, int]:
    """Return how many of ``count`` cases each kind has, at least one."""
    total = sum(KINDS[name].weight for name in names)
    return {name: max(1, round(count * KINDS[name].weight / total)) for name in names}
