"""The routing predictors: one file each, and an entry here."""

from __future__ import annotations

from typing import Any

from specfit_opt.registry import Registry
from specfit_opt.routing_predictor import RoutingPredictor

from ..part_kind import PartKind, make_part
from . import frequency, learned, oracle

#: Every predictor by name. The test matrix and the command line read this.
PREDICTORS: Registry[PartKind[RoutingPredictor]] = Registry(
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
    return make_part(PREDICTORS, RoutingPredictor, predictor, options)


__all__ = ["PREDICTORS", "make_predictor"]
