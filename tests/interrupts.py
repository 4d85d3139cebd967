"""Raises KeyboardInterrupt at a chosen point of some code, where the interpreter could raise it.

CPython looks for signals after calls, when a function begins or goes on, and when a loop goes
round. In between it does not, and code may rely on that: a `with` statement leaves its lock
released or its body covered. So these are the points that are counted here.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Interrupter:
    """Counts the points at which some files' code could be interrupted, and interrupts at one.

    Parameters
    ----------
    files : iterable of Path
        Sources in which to count and interrupt.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = {str(path) for path in files}
        self._at: int | None = None
        self.count = 0

    def run(self, action: Callable[[], Any], at: int | None = None) -> bool:
        """Run ``action``, interrupted at point ``at`` (from 1) if given; return whether it was."""
        self.count, self._at = 0, at
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        points = _points(frame.f_code)
        last = -1  # what was executed before, in this call

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "opcode":
                if (last, frame.f_lasti) in points:
                    self.count += 1
                    if self.count == self._at:
                        raise KeyboardInterrupt
                last = frame.f_lasti
            return step

        return step


@cache
def _points(code: CodeType) -> frozenset[tuple[int, int]]:
    """Return the pairs of adjacent instructions between which signals are looked for.

    Only pairs that the same exception handler covers: the exception is raised by the first, which
    here has to be done by the second.
    """
    instructions = list(dis.get_instructions(code))
    bytecode = dis.Bytecode(code)
    handlers = [
        (entry.start, entry.end, entry.target)
        for entry in bytecode.exception_entries  # type: ignore[attr-defined]
    ]

    def handler(offset: int) -> int | None:
        return next((target for start, end, target in handlers if start <= offset < end), None)

    points = set()
    for one, two in pairwise(instructions):
        if one.opname.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
            following = one.argval if one.opname.startswith("JUMP") else two.offset
            if handler(one.offset) == handler(following):
                points.add((one.offset, following))
    return frozenset(points)
