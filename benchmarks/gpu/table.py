"""The rows of the table, and the time that is left for more."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specfit_opt.text import format_table

#: What a row can say at its end. A figure is neither right nor wrong.
OK, FAILED, FIGURE, NOT_REACHED, NO_ROOM = "ok", "FAILED", "figure", "not reached", "no room"


@dataclass(frozen=True)
class Row:
    part: str
    case: str
    verdict: str
    result: str

    def cells(self) -> tuple[str, str, str, str]:
        return self.part, self.case, self.verdict, self.result


@dataclass
class Table:
    """Collects rows until the time is used up.

    Attributes
    ----------
    seconds : float
        For everything.
    now : callable
        The clock.
    """

    seconds: float
    now: Callable[[], float] = time.monotonic
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin = self.now()
        # What the longest step of a kind took: the next one is begun only if there is that much.
        self._longest: dict[str, float] = {}

    @property
    def left(self) -> float:
        return self.seconds - (self.now() - self._begin)

    @property
    def failed(self) -> bool:
        return any(row.verdict == FAILED for row in self.rows)

    def add(self, part: str, case: str, verdict: str, result: str) -> None:
        row = Row(part, case, verdict, result)
        self.rows.append(row)
        print("  ".join(row.cells()), file=sys.stderr, flush=True)

    def reached(self, part: str, case: str, kind: str, at_least: float = 0.0) -> bool:
        """Return whether there is time for a step; if not, say so in a row."""
        needed = max(at_least, 1.2 * self._longest.get(kind, 0.0))
        if self.left > needed:
            return True
        self.add(part, case, NOT_REACHED, f"{max(self.left, 0.0):.0f} s left, needs {needed:.0f}")
        return False

    @contextmanager
    def step(self, part: str, case: str, kind: str) -> Iterator[None]:
        """Time a step; an error in it becomes a row."""
        begin = self.now()
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            line = (str(error).splitlines() or [""])[0]
            self.add(part, case, FAILED, f"{type(error).__name__}: {line}")
        finally:
            took = self.now() - begin
            self._longest[kind] = max(took, self._longest.get(kind, 0.0))

    def text(self) -> str:
        header = ("part", "case", "verdict", "result")
        return format_table(header, [row.cells() for row in self.rows], left=header)
