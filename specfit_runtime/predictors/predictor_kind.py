"""What a predictor is to the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specfit_opt.routing_predictor import RoutingPredictor


@dataclass(frozen=True)
class PredictorKind:
    """A predictor as the registry holds it.

    Attributes
    ----------
    name : str
    make : callable
        ``make(**options) -> RoutingPredictor``, with what ``needs`` names before the options.
    summary : str
        One line for tables.
    source : str
        What it follows.
    needs : str
        What stands behind the colon in ``"learned:DIR"`` and is ``make``'s first argument; empty if
        the name stands alone.
    """

    name: str
    make: Callable[..., RoutingPredictor]
    summary: str
    source: str
    needs: str = ""

    @property
    def usage(self) -> str:
        """How the predictor is named, such as ``learned:DIR``."""
        return f"{self.name}:{self.needs}" if self.needs else self.name
