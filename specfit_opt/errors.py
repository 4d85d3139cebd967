"""The exceptions that specfit raises on purpose."""

from __future__ import annotations


class SpecfitError(Exception):
    """Base class of every error that specfit raises on purpose."""


class InvalidInputError(SpecfitError, ValueError):
    """Input that specfit cannot accept; the message says what, where and how to mend it."""


class DrafterError(SpecfitError, RuntimeError):
    """A drafter gave something that cannot be verified, such as a probability of NaN."""


class MissingExtraError(SpecfitError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    package : str
        The package that could not be imported.
    extra : str
        The extra of the ``specfit`` distribution that installs it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; it comes with an extra: pip install 'specfit[{extra}]'"
        )
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # By default an exception is rebuilt from its message, which is not what this one takes.
        return type(self), (self.package, self.extra)
