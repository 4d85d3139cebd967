"""The routing predictors: one file each, and an entry here."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidInputError
from . import frequency, last_token
from .registry import DraftNodes, PredictorKind, RoutingPredictor

#: Every predictor by name. The test matrix and the command line read this.
PREDICTORS: dict[str, PredictorKind] = {
    kind.name: kind for kind in (frequency.KIND, last_token.KIND)
}


def make_predictor(predictor: str | RoutingPredictor, **options: Any) -> RoutingPredictor:
    """Return the predictor of that name.

    Parameters
    ----------
    predictor : str or RoutingPredictor
        A RoutingPredictor is returned as it is.
    **options
        Of the predictor; see its file under ``specfit_runtime/predictors``.

    Raises
    ------
    InvalidInputError
        If the name is unknown (the message lists the names) or takes no such option.
    """
    if isinstance(predictor, RoutingPredictor):
        if options:
            raise InvalidInputError(
                f"options ({', '.join(options)}) go with a predictor's name, not with an object"
            )
        return predictor
    kind = PREDICTORS.get(predictor)
    if kind is None:
        raise InvalidInputError(
            f"predictor {predictor!r} is unknown; the predictors are {', '.join(PREDICTORS)}"
        )
    try:
        return kind.make(**options)
    except TypeError as error:
        raise InvalidInputError(f"predictor {predictor!r}: {error}") from None


__all__ = [
    "PREDICTORS",
    "DraftNodes",
    "PredictorKind",
    "RoutingPredictor",
    "make_predictor",
]
