"""The command line ``specfit``: one file per subcommand."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
