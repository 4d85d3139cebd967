"""The file of a kept state: pure data, read strictly, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt.checks import Anything, Maybe, OneOf
from specfit_opt.files.archive import Field, named, read_archive
from specfit_opt.files.atomic import atomic_write
from specfit_opt.files.strict_json import parse_json
from specfit_opt.schema import Record

from ..calibration.runtime_profile import RuntimeProfile, profile_from
from ..errors import InvalidInputError

#: Version of the file that this code reads and writes.
FILE_VERSION = 1
_ARRAYS = (
    Field("learned", ("uint8",), ("bytes",)),
    Field("tokens", ("int64",), ("tokens",), optional=True),
    Field("experts", ("int16", "int32"), ("tokens", "layers", "used"), optional=True),
)
# Each part is checked by what learned it.
_LEARNED = Record(
    {
        "version": OneOf((FILE_VERSION,)),
        "key": Record({}, others=True),
        "profile": Maybe(Anything()),
        "costs": Maybe(Anything()),
        "acceptance": Anything(),
        "policy": Maybe(Anything()),
    }
)


@dataclass(frozen=True, eq=False)
class KeptState:
    """What a decode learned, as a later process takes it.

    Attributes
    ----------
    profile : RuntimeProfile or None
        What was measured before the first text; None where the policy asks no prices.
    costs : dict or None
        Of :meth:`~specfit_opt.control.correction.OnlineCorrection.to_state`, in relation to the
        profile.
    acceptance : dict
        Of :meth:`~specfit_opt.control.acceptance_calibration.AcceptanceCalibrator.to_state`.
    policy : dict or None
        Of :meth:`~specfit_opt.policies.Policy.to_state`.
    routing : tuple of ndarray or None
        Of :meth:`~specfit_opt.routing_predictor.RoutingPredictor.to_state`.
    """

    profile: RuntimeProfile | None
    costs: Mapping[str, Any] | None
    acceptance: Mapping[str, Any]
    policy: Mapping[str, Any] | None
    routing: tuple[NDArray[np.int64], NDArray[np.integer]] | None

    def save(self, path: Path, key: Mapping[str, Any]) -> None:
        """Write the state, whole or not at all.

        Parameters
        ----------
        path : Path
        key : mapping
            What it belongs to.

        Raises
        ------
        OSError
            If the file cannot be written; an older one is as it was.
        """
        learned = {
            "version": FILE_VERSION,
            "key": dict(key),
            "profile": None if self.profile is None else self.profile.to_dict(),
            "costs": self.costs,
            "acceptance": self.acceptance,
            "policy": self.policy,
        }
        text = json.dumps(learned, allow_nan=False)
        arrays: dict[str, Any] = {"learned": np.frombuffer(text.encode(), dtype=np.uint8)}
        if self.routing is not None:
            arrays["tokens"], arrays["experts"] = self.routing
        with atomic_write(path) as handle:
            np.savez(handle, **arrays)


def load_kept_state(path: Path, key: Mapping[str, Any]) -> KeptState:
    """Read the state of ``key``.

    Raises
    ------
    InvalidInputError
        If the file is damaged, of another version or belongs to something else. What its parts may
        hold is checked by those that take them.
    OSError
        If it cannot be opened.
    """
    arrays = read_archive(path, _ARRAYS, "a kept state", "KeptState.save")
    learned = parse_json(arrays["learned"].tobytes(), str(path), _LEARNED)
    with named(path):
        # What was written and what is at hand are compared as JSON has them.
        if learned["key"] != json.loads(json.dumps(key)):
            raise InvalidInputError("it belongs to another model, drafter, store or machine")
        if ("tokens" in arrays) != ("experts" in arrays):
            raise InvalidInputError("tokens and experts must come together")
        profile = learned["profile"]
        return KeptState(
            profile=None if profile is None else profile_from(profile, "profile"),
            costs=learned["costs"],
            acceptance=learned["acceptance"],
            policy=learned["policy"],
            routing=(arrays["tokens"], arrays["experts"]) if "tokens" in arrays else None,
        )
