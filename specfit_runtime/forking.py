"""What a forked child has to make anew, and what it cannot do."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

import torch

from .errors import StoreError


class _Forked(Protocol):
    def after_fork(self) -> None:
        """Make locks and threads anew; called in the child, before anything else runs there."""


_registered: WeakSet[_Forked] = WeakSet()


def renew_after_fork(thing: _Forked) -> None:
    """Call ``thing.after_fork()`` in every forked child, as long as someone refers to it."""
    _registered.add(thing)


def require_process(process: int) -> None:
    """Check that this is the process that began with CUDA.

    Raises
    ------
    StoreError
        If it was forked from it.
    """
    if process != os.getpid():
        raise StoreError(
            "this process was forked from the one that loaded the model, and CUDA does not go on "
            "in a forked process: load the model here, or start it with the method 'spawn'"
        )


def _in_child() -> None:
    things = list(_registered)
    for thing in things:
        thing.after_fork()
    if things and torch.get_num_threads() > 1:
        # OpenMP's threads are not here either, and the next product would wait for them for ever.
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_in_child)
