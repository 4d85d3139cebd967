from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_checkpoint


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The suite's workers fill the cores; threads that spin for one another would slow them all."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function like :func:`tiny_checkpoint` whose folders are shared: do not change."""

    @cache
    def folder(model_type: str, **options: Any) -> Path:
        return tiny_checkpoint(model_type, tmp_path_factory.mktemp(model_type), **options)

    return folder
