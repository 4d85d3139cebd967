"""The command line ``specfit``: that of `specfit_opt.cli` and the commands that run a model."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
