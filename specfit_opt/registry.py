"""Named entries of one kind: methods, policies, cache rules, stores and the like."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from .checks import shown
from .errors import InvalidInputError


class Named(Protocol):
    """What has a name to be found by."""

    @property
    def name(self) -> str:
        """As users write it."""


_Entry = TypeVar("_Entry", bound=Named)


class Registry(Mapping[str, _Entry], Generic[_Entry]):
    """The entries of one kind by name, in the order of their registration.

    Parameters
    ----------
    kind : str
        What an entry is, for messages: ``"method"``.
    entries : iterable
        Those that the package ships.
    plural : str, optional
        Default: the kind with an s.

    Examples
    --------
    >>> from specfit_opt import METHODS
    >>> METHODS.find("exact").name
    'exact'
    >>> METHODS.find("exat")
    Traceback (most recent call last):
    specfit_opt.errors.InvalidInputError: method 'exat' is unknown; did you mean 'exact'? The ...
    """

    def __init__(self, kind: str, entries: Iterable[_Entry], *, plural: str | None = None) -> None:
        self.kind = kind
        self.plural = plural or f"{kind}s"
        self._entries: dict[str, _Entry] = {}
        for entry in entries:
            self.register(entry)

    def register(self, entry: _Entry) -> _Entry:
        """Add an entry, which counts from then on like those that the package ships.

        Parameters
        ----------
        entry : object
            Of the class that this kind's entries have.

        Returns
        -------
        object
            The entry.

        Raises
        ------
        InvalidInputError
            If its name is no text, empty, or taken.
        """
        name = getattr(entry, "name", None)
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"a {self.kind} needs a name, got {shown(name)}")
        if name in self._entries:
            raise InvalidInputError(f"there is a {self.kind} {name!r} already; choose another name")
        self._entries[name] = entry
        return entry

    def remove(self, name: str) -> _Entry:
        """Take out the entry of that name and return it.

        Raises
        ------
        InvalidInputError
            As :meth:`find`.
        """
        entry = self.find(name)
        del self._entries[name]
        return entry

    def find(self, name: Any) -> _Entry:
        """Return the entry of that name.

        Raises
        ------
        InvalidInputError
            If there is none; the message names the nearest, and all.
        """
        entry = self._entries.get(name) if isinstance(name, str) else None
        if entry is None:
            raise InvalidInputError(self.unknown(name))
        return entry

    def unknown(self, name: Any) -> str:
        """Return the message that there is no such entry, the nearest name first."""
        names = list(self._entries)
        near = difflib.get_close_matches(name[:60], names, n=1) if isinstance(name, str) else []
        meant = f"did you mean {near[0]!r}? The" if near else "the"
        listed = f"{meant} {self.plural} are {', '.join(names)}"
        return f"{self.kind} {shown(name)} is unknown; {listed}"

    def __getitem__(self, name: str) -> _Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
