"""Notes whether a change of what is in the slots was cut short."""

from __future__ import annotations


class Change:
    """A context manager around every change of what is in the slots.

    An exception may come at any instruction of the block, or of this class. Then :attr:`torn` stays
    set, and whoever comes next has to mend the slots before it relies on them.

    Attributes
    ----------
    torn : bool
        Whether a change began that did not end.
    """

    __slots__ = ("_before", "torn")

    def __init__(self) -> None:
        self.torn = self._before = False

    def __enter__(self) -> None:
        self._before = self.torn
        self.torn = True

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.torn = self._before
