"""Settings shared by all tests: a reproducible hypothesis profile and the optional material."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Derandomised, so that a failure in CI is the same failure at home; no deadline, because the
# machines that run the suite are shared.
hypothesis.settings.register_profile("specfit", derandomize=True, deadline=None)
hypothesis.settings.load_profile("specfit")

# A suite that was started in the background of a script ignores interrupts, and what it starts
# inherits that; tests of interrupts send them to what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the command line learns out of the user's folder of state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Directory of the optional material beside the checkout: real instances and traces."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip("the optional material (directory 'shared' beside the checkout) is absent")
    return path
