"""What a kind of drafter is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .drafter import Drafter


@dataclass(frozen=True)
class DrafterKind:
    """A kind of drafter as the registry holds it.

    Attributes
    ----------
    name : str
        What stands before the colon in ``"eagle3:DIR"``.
    make : callable
        ``make(argument) -> Drafter``; ``argument`` is what stands behind the colon, or ``""``.
    summary : str
        One line for tables.
    needs : str
        What the argument is, ``"DIR"`` for a folder, or empty if there is none.
    """

    name: str
    make: Callable[[str], Drafter]
    summary: str
    needs: str

    @property
    def usage(self) -> str:
        """How the drafter is named, such as ``eagle3:DIR``."""
        return f"{self.name}:{self.needs}" if self.needs else self.name
