"""What a drafter or a predictor is to its registry, and how its name makes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from specfit_opt.registry import Registry

from .errors import InvalidInputError

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class PartKind(Generic[_Part]):
    """A kind of drafter or predictor as the registry holds it.

    Attributes
    ----------
    name : str
        What stands before the colon in ``"eagle3:DIR"``.
    make : callable
        ``make(**options)``, with what ``needs`` names before the options.
    summary : str
        One line for tables.
    needs : str
        What stands behind the colon and is ``make``'s first argument; empty if the name stands
        alone.
    """

    name: str
    make: Callable[..., _Part]
    summary: str
    needs: str = ""

    @property
    def usage(self) -> str:
        """How the part is named, such as ``eagle3:DIR``."""
        return f"{self.name}:{self.needs}" if self.needs else self.name


def make_part(
    registry: Registry[PartKind[_Part]], base: type[Any], part: str | _Part, options: Any
) -> _Part:
    """Return what ``part`` names, or ``part`` itself if it is a ``base``.

    Raises
    ------
    InvalidInputError
        If the name is unknown (the message lists the names), lacks its argument or has one too
        many, or it takes no such option.
    """
    what = registry.kind
    if isinstance(part, base):
        if options:
            raise InvalidInputError(
                f"options ({', '.join(options)}) go with a {what}'s name, not with an object"
            )
        given: _Part = part
        return given
    if not isinstance(part, str):
        usages = ", ".join(kind.usage for kind in registry.values())
        raise InvalidInputError(
            f"a {what} is a name or a {base.__name__}, got {part!r}; use {usages}"
        )
    name, colon, argument = part.partition(":")
    kind = registry.find(name)
    if kind.needs and not argument:
        raise InvalidInputError(f"{what} {name!r} needs a {kind.needs}: use {kind.usage}")
    if colon and not kind.needs:
        raise InvalidInputError(f"{what} {name!r} takes nothing after a colon, got {argument!r}")
    try:
        return kind.make(*filter(None, [argument]), **options)
    except TypeError as error:
        if not options:
            raise
        raise InvalidInputError(f"{what} {part!r}: {error}") from None
