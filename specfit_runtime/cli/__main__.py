"""``python -m specfit_runtime.cli``: the same as the command ``specfit``."""

from __future__ import annotations

from .main import main

if __name__ == "__main__":
    raise SystemExit(main())
