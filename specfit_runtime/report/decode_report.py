"""What one decode did, or several with the same settings."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from specfit_opt.files.atomic import atomic_write
from specfit_opt.rates import finite, plain_dict

from ..errors import InvalidInputError
from .records import CycleRecord, PrefillRecord
from .summary import summary
from .totals import DecodeTotals

#: What the first line of a report file says, and the version of what follows.
_FORMAT, _VERSION = "specfit-decode-report", 1


@dataclass(frozen=True, kw_only=True)
class DecodeReport:
    """What one decode did, or several with the same settings.

    Attributes
    ----------
    model : str
        Name or folder of the target.
    policy, drafter, predictor : str or None
        Names; None for a part that was not used.
    store, cache_policy : str
        Names.
    link_bandwidth : float or None
        Bytes per second of the emulated link. None: no link was emulated.
    device, dtype : str
        Where the target ran, and in what.
    n_layers, n_experts, top_k : int
        MoE layers, experts per layer, experts per token and layer.
    slots : tuple of int
        Experts per layer that the cache holds.
    do_sample : bool
        Whether tokens were drawn; else decoding was greedy.
    prompts : int
        Decodes that the report covers.
    prompt_tokens : int
        Tokens of their prompts.
    prefill : PrefillRecord
        The passes over the prompts. They are in no total.
    cycles : tuple of CycleRecord
        The cycles in order; of several decodes, one decode's after the other's.
    cost_source : str or None
        Where predicted times come from: a profile, or what was assumed without one.
    assumptions : tuple of str
        What had to be assumed, for example which of the target's states the drafter reads.
    warnings : tuple of str
        What went worse than it should.

    Raises
    ------
    InvalidInputError
        If the positions of the cycles contradict what they committed.
    """

    model: str = ""
    policy: str
    drafter: str | None
    predictor: str | None
    store: str
    cache_policy: str = ""
    link_bandwidth: float | None = None
    device: str = ""
    dtype: str = ""
    n_layers: int = 0
    n_experts: int = 0
    top_k: int = 0
    slots: tuple[int, ...] = ()
    do_sample: bool = False
    prompts: int = 1
    prompt_tokens: int
    prefill: PrefillRecord
    cycles: tuple[CycleRecord, ...]
    cost_source: str | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        starts = 1
        for before, after in zip(self.cycles, self.cycles[1:], strict=False):
            if after.position == before.position + before.committed:
                continue
            starts += 1
            if after.position > before.position:
                raise InvalidInputError(
                    f"a cycle at position {before.position} committed {before.committed} tokens "
                    f"but the next is at position {after.position}"
                )
        if starts > self.prompts:
            raise InvalidInputError(
                f"the cycles start anew {starts - 1} times, but the report covers "
                f"{self.prompts} decode(s)"
            )

    @cached_property
    def totals(self) -> DecodeTotals:
        """Sums and rates over the cycles, the prefill not counted."""
        return DecodeTotals.of(self.cycles)

    @property
    def new_tokens(self) -> int:
        """Tokens of the output: those of the cycles, and the one that each prefill gives."""
        return self.prefill.committed + self.totals.tokens

    @property
    def predicted_cycle_seconds(self) -> float | None:
        """Mean predicted time of the cycles that have one; None where none has."""
        known = [c.predicted_seconds for c in self.cycles if c.predicted_seconds is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def measured_cycle_seconds(self) -> float | None:
        """Mean time of the same cycles as measured; None where none has a prediction."""
        known = [c.seconds for c in self.cycles if c.predicted_seconds is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def prediction_error(self) -> float | None:
        """Median over the cycles of ``|predicted - measured| / measured``; None where unknown."""
        errors = [
            abs(c.predicted_seconds - c.seconds) / c.seconds
            for c in self.cycles
            if c.predicted_seconds is not None and c.seconds > 0.0
        ]
        return median(errors) if errors else None

    @property
    def expected_tokens_per_pass(self) -> float | None:
        """Mean of the promised tokens of the cycles that have them; None where none has."""
        known = [c.expected_tokens for c in self.cycles if c.expected_tokens is not None]
        return math.fsum(known) / len(known) if known else None

    @classmethod
    def merge(cls, reports: Sequence[DecodeReport]) -> DecodeReport:
        """Return one report over several decodes with the same settings.

        Parameters
        ----------
        reports : sequence of DecodeReport
            In the order of decoding.

        Returns
        -------
        DecodeReport
            Cycles one after the other, prefills summed, every assumption and warning once.

        Raises
        ------
        InvalidInputError
            If there is none, or two differ in a setting.
        """
        reports = tuple(reports)
        if not reports:
            raise InvalidInputError("no report to merge; give at least one")
        first = reports[0]
        for i, report in enumerate(reports):
            for name in _SETTINGS:
                mine, other = getattr(first, name), getattr(report, name)
                if mine != other:
                    raise InvalidInputError(
                        f"report {i} has {name} {other!r} but report 0 has {mine!r}; only decodes "
                        "with the same settings can be merged"
                    )
        prefills = [report.prefill for report in reports]
        return dataclasses.replace(
            first,
            prompts=sum(report.prompts for report in reports),
            prompt_tokens=sum(report.prompt_tokens for report in reports),
            prefill=PrefillRecord(
                **{
                    f.name: sum(getattr(prefill, f.name) for prefill in prefills)
                    for f in dataclasses.fields(PrefillRecord)
                }
            ),
            cycles=tuple(cycle for report in reports for cycle in report.cycles),
            assumptions=tuple(dict.fromkeys(a for r in reports for a in r.assumptions)),
            warnings=tuple(dict.fromkeys(w for r in reports for w in r.warnings)),
        )

    def summary(self) -> str:
        """Return a few lines for people.

        Returns
        -------
        str
            Without a final line feed.
        """
        return summary(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Settings, ``prefill``, ``totals`` and ``cycles``. What JSON cannot hold is None.
        """
        return {
            **self._settings(),
            "prefill": self.prefill.to_dict(),
            "totals": self._totals(),
            "cycles": [cycle.to_dict() for cycle in self.cycles],
        }

    def write_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON lines, whole or not at all.

        The first line is a header with the settings and the prefill, the last one holds the totals,
        and each line between is a cycle; ``type`` says which. Lines are UTF-8 and hold no NaN.

        Parameters
        ----------
        path : str or path-like
            Replaced if it exists.

        Raises
        ------
        OSError
            If the file cannot be written; an older file is then as it was.
        """
        header = {
            "type": "header",
            "format": _FORMAT,
            "version": _VERSION,
            **self._settings(),
            "prefill": self.prefill.to_dict(),
        }
        with atomic_write(path, "w") as handle:
            for line in (
                header,
                *({"type": "cycle", **cycle.to_dict()} for cycle in self.cycles),
                {"type": "totals", **self._totals()},
            ):
                handle.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")

    def _settings(self) -> dict[str, Any]:
        values = {k: v for k, v in plain_dict(self).items() if k not in ("prefill", "cycles")}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def _totals(self) -> dict[str, Any]:
        rates = (
            "new_tokens",
            "predicted_cycle_seconds",
            "measured_cycle_seconds",
            "prediction_error",
            "expected_tokens_per_pass",
        )
        return {**self.totals.to_dict(), **{name: finite(getattr(self, name)) for name in rates}}


#: What decodes must share to be merged.
_SETTINGS = tuple(
    f.name
    for f in dataclasses.fields(DecodeReport)
    if f.name
    not in (
        "prefill",
        "cycles",
        "prompts",
        "prompt_tokens",
        "assumptions",
        "warnings",
        "cost_source",
    )
)
