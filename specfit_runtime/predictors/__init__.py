"""The routing predictors: one file each, and an entry here."""

from __future__ import annotations

from typing import Any

from specfit_opt.registry import Registry
from specfit_opt.routing_predictor import RoutingPredictor

from ..errors import InvalidInputError
from . import frequency, learned, oracle
from .predictor_kind import PredictorKind

#: Every predictor by name. The test matrix and the command line read this.
PREDICTORS: Registry[PredictorKind] = Registry(
    "predictor", (frequency.KIND, learned.KIND, oracle.KIND)
)


def make_predictor(predictor: str | RoutingPredictor, **options: Any) -> RoutingPredictor:
    """Return the predictor that ``predictor`` names.

    Parameters
    ----------
    predictor : str or RoutingPredictor
        A name, such as ``frequency``, or a name and a path, such as ``learned:DIR``. A
        RoutingPredictor is returned as it is.
    **options
        Of the predictor; see its file under ``specfit_runtime/predictors``.

    Returns
    -------
    RoutingPredictor

    Raises
    ------
    InvalidInputError
        If the name is unknown (the message lists the names), lacks its path or has one too many,
        or takes no such option.
    """
    if isinstance(predictor, RoutingPredictor):
        if options:
            raise InvalidInputError(
                f"options ({', '.join(options)}) go with a predictor's name, not with an object"
            )
        return predictor
    if not isinstance(predictor, str):
        raise InvalidInputError(
            f"a predictor is a name or a RoutingPredictor, got {predictor!r}; use "
            f"{', '.join(kind.usage for kind in PREDICTORS.values())}"
        )
    name, colon, argument = predictor.partition(":")
    kind = PREDICTORS.find(name)
    if kind.needs and not argument:
        raise InvalidInputError(f"predictor {name!r} needs a {kind.needs}: use {kind.usage}")
    if colon and not kind.needs:
        raise InvalidInputError(f"predictor {name!r} takes nothing after a colon, got {argument!r}")
    try:
        return kind.make(*filter(None, [argument]), **options)
    except TypeError as error:
        raise InvalidInputError(f"predictor {predictor!r}: {error}") from None


__all__ = ["PREDICTORS", "PredictorKind", "make_predictor"]
