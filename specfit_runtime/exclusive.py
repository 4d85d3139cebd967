"""Keeps objects for one call at a time: a second one is told at its start, not in the middle."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from threading import Lock, RLock
from typing import TypeVar

from .errors import BusyError

_Result = TypeVar("_Result")

_guard = Lock()
_loading = RLock()
_holders: dict[int, weakref.ref[_Holder]] = {}


class _Holder:
    """Whoever keeps some objects; they are free again when nobody refers to it any more."""

    def __init__(self, parts: list[tuple[object, str]]) -> None:
        self.parts = parts  # so that no other object gets an id of theirs meanwhile


def exclusively(parts: Iterable[tuple[object, str]], action: Callable[[], _Result]) -> _Result:
    """Run ``action`` while no other call of this function has any of the ``parts``.

    Parameters
    ----------
    parts : iterable of (object, str)
        What to keep, compared by identity, and what to say if it is taken.
    action : callable

    Raises
    ------
    BusyError
        If one of them is taken; nothing is waited for.

    Notes
    -----
    An interrupt may come at any point and be kept, with its traceback, for as long as it likes: the
    one reference to the holder is given up without a call, so nothing can come in between.
    """
    holder = _Holder(list(parts))
    try:
        _take(weakref.ref(holder))
        return action()
    finally:
        del holder


def taken(what: str) -> str:
    """Return what a call is told that comes while another has ``what``."""
    return (
        f"the {what} is in use for another text; wait for that one, or give each thread a {what} "
        "of its own"
    )


def loading() -> RLock:
    """Return the lock to hold while Transformers makes a model.

    It sets torch's default dtype and exchanges initialisers meanwhile, for the whole process: of
    two threads that do so at once, one may leave behind what the other had set.
    """
    return _loading


def _take(reference: weakref.ref[_Holder]) -> None:
    holder = reference()
    assert holder is not None  # the caller has it
    parts = holder.parts
    del holder
    with _guard:
        for key in [key for key, other in _holders.items() if other() is None]:
            del _holders[key]
        for part, message in parts:
            if id(part) in _holders:
                raise BusyError(message)
        for part, _ in parts:
            _holders[id(part)] = reference


def _after_fork() -> None:
    """Forget what other threads of the parent were doing: they are not there."""
    global _guard, _loading
    _guard, _loading = Lock(), RLock()
    _holders.clear()


os.register_at_fork(after_in_child=_after_fork)
