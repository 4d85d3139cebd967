"""The errors that the runtime raises on purpose, beside those of `specfit_opt`."""

from __future__ import annotations

from specfit_opt.errors import DrafterError, InvalidInputError, MissingExtraError, SpecfitError

__all__ = [
    "BusyError",
    "CheckpointError",
    "DrafterError",
    "InvalidInputError",
    "MissingExtraError",
    "SpecfitError",
    "StoreError",
]


#: Characters of a message about a file. The file's own names in it can be of any length.
_LONGEST = 1200


class CheckpointError(InvalidInputError):
    """A checkpoint that cannot be served: a file, a tensor or a format is not as it must be."""

    def __init__(self, message: str) -> None:
        short = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
        super().__init__(short)


class StoreError(SpecfitError, OSError):
    """Weights could not be brought in from where they are kept."""


class BusyError(SpecfitError, RuntimeError):
    """The model is decoding for someone else at the moment."""
