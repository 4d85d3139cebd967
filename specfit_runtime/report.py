"""What one decode did: a record for every pass, totals, a summary and a file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from specfit_opt.checks import Anything, Flag, Kind, Maybe, OneOf, Real, Text, Whole
from specfit_opt.files.archive import named
from specfit_opt.files.atomic import atomic_write
from specfit_opt.files.regular_file import printable
from specfit_opt.files.strict_json import read_json_lines
from specfit_opt.schema import ListOf, MapOf, Record, settle
from specfit_opt.text import byte_size, figure, seconds

from .errors import InvalidInputError

__all__ = ["CycleRecord", "DecodeReport", "DecodeTotals", "PrefillRecord"]

#: What the first line of a report file says, and the version of what follows.
_FORMAT, _VERSION = "specfit-decode-report", 1

#: The parts that the time of a cycle is split into, in the order of a cycle.
PARTS = ("draft", "search", "transfer", "verify", "other")

#: Bytes of a report file that is read: some 190,000 cycles.
MAX_BYTES = 2**27

#: What a time or an expectation may be, so that sums stay finite.
_FIGURE = Real(most=1e15)


@dataclass(frozen=True, kw_only=True)
class CycleRecord:
    """One cycle of decoding: draft, choose, verify, commit.

    Attributes
    ----------
    position : int
        Tokens of the output that were committed before the cycle.
    levels, drafted : int
        Levels that were drafted, and the nodes they held (the root not counted).
    verified : int
        Nodes that the pass verified, the root included.
    accepted : int
        Verified nodes, the root not counted, whose token the target confirmed.
    committed : int
        Tokens that the cycle added to the output.
    draft_seconds, search_seconds : float
        Drafting, and choosing what to verify.
    transfer_seconds : float
        Waiting for weights. What arrived while the target computed costs no time here.
    verify_seconds : float
        The target's pass, the waiting not counted.
    other_seconds : float
        The rest: acceptance, logits processors, compaction of the cache, streaming.
    predicted_seconds : float or None
        Time of the whole cycle as the cost model predicted it; None where nothing was predicted.
    expected_tokens : float or None
        Tokens that the chosen nodes promised.
    lookups, hits, misses : int
        Experts that the pass used, summed over the layers; those that were in the cache or on
        their way into it, and those that were not. ``hits + misses == lookups``.
    prefetched, prefetch_hits : int
        Experts requested before the pass asked for them, and how many of the hits were such.
    bytes : int
        Bytes moved over the store's link, prefetches included.
    prefetch_bytes : int
        The part of ``bytes`` that was prefetched.
    wasted_prefetch_bytes : int
        Prefetched bytes known by the end of the cycle to have served no pass.
    evictions, bypassed, waves : int
        Experts that lost their slot; experts used without getting one; and the rounds through the
        scratch slots that those took.

    Raises
    ------
    InvalidInputError
        If a figure is negative or NaN, or the counters contradict each other.
    """

    position: int
    levels: int
    drafted: int
    verified: int
    accepted: int
    committed: int
    draft_seconds: float
    search_seconds: float
    transfer_seconds: float
    verify_seconds: float
    other_seconds: float
    predicted_seconds: float | None = None
    expected_tokens: float | None = None
    lookups: int
    hits: int
    misses: int
    bytes: int
    prefetch_bytes: int = 0
    prefetch_hits: int = 0
    wasted_prefetch_bytes: int = 0
    prefetched: int = 0
    evictions: int = 0
    bypassed: int = 0
    waves: int = 0

    def __post_init__(self) -> None:
        _settle(self)
        _check_lookups(self, f"the cycle at position {self.position}")
        where = f"the cycle at position {self.position}"
        if not 0 <= self.accepted < self.verified:
            raise InvalidInputError(
                f"{where} accepted {self.accepted} of {self.verified} verified nodes; the root is "
                "verified but not accepted"
            )
        if not 1 <= self.committed <= self.accepted + 1:
            raise InvalidInputError(
                f"{where} committed {self.committed} tokens after accepting {self.accepted}; a "
                "cycle commits at least one and at most one more than it accepts"
            )
        if self.prefetch_hits > self.hits:
            raise InvalidInputError(
                f"{where} has {self.prefetch_hits} hits by prefetch among {self.hits} hits"
            )
        if self.prefetch_bytes > self.bytes:
            raise InvalidInputError(
                f"{where} prefetched {self.prefetch_bytes} of {self.bytes} bytes moved"
            )
        if self.prefetch_bytes and not self.prefetched:
            raise InvalidInputError(
                f"{where} prefetched {self.prefetch_bytes} bytes but no expert; give prefetched"
            )

    @property
    def seconds(self) -> float:
        """Time of the whole cycle: the sum of its parts."""
        return (
            self.draft_seconds
            + self.search_seconds
            + self.transfer_seconds
            + self.verify_seconds
            + self.other_seconds
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Every attribute, and ``seconds``.
        """
        return {**_fields(self), "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class PrefillRecord:
    """The passes over the prompt, which every policy pays alike.

    Attributes
    ----------
    tokens : int
        Prompt tokens that were processed.
    committed : int
        Tokens that it added to the output: the first one.
    seconds : float
        Time to the first token.
    transfer_seconds : float
        The part spent waiting for weights.
    lookups, hits, misses, bytes : int
        As in `CycleRecord`, of the prefill alone.

    Raises
    ------
    InvalidInputError
        If a figure is negative or NaN, or the counters contradict each other.
    """

    tokens: int
    committed: int = 1
    seconds: float
    transfer_seconds: float
    lookups: int
    hits: int
    misses: int
    bytes: int

    def __post_init__(self) -> None:
        _settle(self)
        _check_lookups(self, "the prefill")

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Every attribute.
        """
        return _fields(self)


@dataclass(frozen=True, kw_only=True)
class DecodeTotals:
    """Sums over cycles, and the rates that follow from them. The prefill is not in it.

    Attributes
    ----------
    passes, tokens : int
        Cycles, and tokens that they committed.
    levels, drafted, verified, accepted : int
        Sums of what `CycleRecord` calls so.
    draft_seconds, search_seconds, transfer_seconds, verify_seconds, other_seconds : float
        Sums of the parts.
    lookups, hits, misses, prefetched, prefetch_hits : int
        Sums over the cycles and layers.
    bytes, prefetch_bytes, wasted_prefetch_bytes : int
        Sums in bytes.
    evictions, bypassed, waves : int
        Sums over the cycles and layers.
    """

    passes: int
    tokens: int
    levels: int
    drafted: int
    verified: int
    accepted: int
    draft_seconds: float
    search_seconds: float
    transfer_seconds: float
    verify_seconds: float
    other_seconds: float
    lookups: int
    hits: int
    misses: int
    prefetched: int
    prefetch_hits: int
    bytes: int
    prefetch_bytes: int
    wasted_prefetch_bytes: int
    evictions: int
    bypassed: int
    waves: int

    @classmethod
    def of(cls, cycles: Iterable[CycleRecord]) -> DecodeTotals:
        """Return the totals of ``cycles``."""
        records = tuple(cycles)
        summed: dict[str, Any] = {
            f.name: (math.fsum if f.name.endswith("seconds") else sum)(
                getattr(record, f.name) for record in records
            )
            for f in dataclasses.fields(cls)
            if f.name not in ("passes", "tokens")
        }
        tokens = sum(record.committed for record in records)
        return cls(passes=len(records), tokens=tokens, **summed)

    @property
    def seconds(self) -> float:
        """Time of all cycles."""
        return math.fsum(getattr(self, f"{part}_seconds") for part in PARTS)

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding; NaN without a cycle."""
        return _ratio(self.tokens, self.seconds)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens committed per pass."""
        return _ratio(self.tokens, self.passes)

    @property
    def verified_per_pass(self) -> float:
        """Nodes verified per pass, the root included."""
        return _ratio(self.verified, self.passes)

    @property
    def acceptance(self) -> float:
        """Share of the verified nodes, roots not counted, that were accepted."""
        return _ratio(self.accepted, self.verified - self.passes)

    @property
    def experts_per_token(self) -> float:
        """Experts used per committed token, summed over the layers."""
        return _ratio(self.lookups, self.tokens)

    @property
    def moved(self) -> int:
        """Experts brought in: misses and prefetches."""
        return self.misses + self.prefetched

    @property
    def moved_per_token(self) -> float:
        """Experts brought in per committed token."""
        return _ratio(self.moved, self.tokens)

    @property
    def bytes_per_token(self) -> float:
        """Bytes moved per committed token."""
        return _ratio(self.bytes, self.tokens)

    @property
    def hit_rate(self) -> float:
        """Share of the used experts that were in the cache, or on their way into it."""
        return _ratio(self.hits, self.lookups)

    def share(self, part: str) -> float:
        """Return the share of the time that ``part`` took, such as ``"transfer"``.

        Raises
        ------
        InvalidInputError
            If there is no such part.
        """
        if part not in PARTS:
            raise InvalidInputError(f"part {part!r} is none of {', '.join(PARTS)}")
        return _ratio(getattr(self, f"{part}_seconds"), self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return sums and rates as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Every attribute and property, and ``share`` by part. A rate without a base is None.
        """
        rates = (
            "seconds",
            "tokens_per_second",
            "tokens_per_pass",
            "verified_per_pass",
            "acceptance",
            "experts_per_token",
            "moved",
            "moved_per_token",
            "bytes_per_token",
            "hit_rate",
        )
        return {
            **_fields(self),
            **{name: _finite(getattr(self, name)) for name in rates},
            "share": {part: _finite(self.share(part)) for part in PARTS},
        }


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
        settle(self, _SETTING_KINDS)
        object.__setattr__(self, "cycles", tuple(self.cycles))
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
        totals, prefill = self.totals, self.prefill
        lines = [self._headline()]

        def add(label: str, text: str) -> None:
            lines.append(f"  {label.ljust(16)} {text}")

        if self.link_bandwidth is not None:
            add(
                "emulated link",
                f"{byte_size(self.link_bandwidth)}/s: times are those of this link, which the "
                "machine does not have",
            )
        where = [self.store, *([f"{self.cache_policy} cache"] if self.cache_policy else [])]
        if self.slots:
            low, high = min(self.slots), max(self.slots)
            slots = f"{low}" if low == high else f"{low} to {high}"
            where.append(f"{slots} of {self.n_experts} experts per layer")
        add("experts kept in", ", ".join(where))
        add(
            "prefill",
            f"{prefill.tokens} tokens in {seconds(prefill.seconds)} "
            f"(waiting for weights {seconds(prefill.transfer_seconds)}), "
            f"{byte_size(prefill.bytes)} moved; not in the figures below",
        )
        if not self.cycles:
            add("decoding", "no pass: the output ended with the token that the prefill gave")
        else:
            add(
                "speed",
                f"{figure(totals.tokens_per_second)} tokens/s: {totals.tokens} tokens in "
                f"{totals.passes} passes, {seconds(totals.seconds)}",
            )
            promised = self.expected_tokens_per_pass
            add(
                "tokens per pass",
                figure(totals.tokens_per_pass)
                + ("" if promised is None else f" (expected {figure(promised)})")
                + f", {figure(totals.verified_per_pass)} nodes verified"
                + self._accepted(),
            )
            add(
                "per token",
                f"{figure(totals.experts_per_token)} experts used, "
                f"{figure(totals.moved_per_token)} moved, {byte_size(totals.bytes_per_token)}",
            )
            add(
                "cache hits",
                f"{totals.hit_rate:.1%} of {totals.lookups} lookups"
                + (f", {totals.waves} waves" if totals.waves else ""),
            )
            if totals.prefetched:
                add(
                    "prefetch",
                    f"{totals.prefetched} experts, {totals.prefetch_hits} hits, "
                    f"{byte_size(totals.prefetch_bytes)} of which "
                    f"{byte_size(totals.wasted_prefetch_bytes)} wasted",
                )
            add(
                "time",
                ", ".join(
                    f"{part} {totals.share(part):.1%} "
                    f"({seconds(getattr(totals, f'{part}_seconds'))})"
                    for part in PARTS
                ),
            )
            add("cycle time", self._cycle_time())
        if self.cost_source:
            add("predicted from", self.cost_source)
        for label, notes in (("assumed", self.assumptions), ("warning", self.warnings)):
            for text in notes:
                add(label, text)
        return "\n".join(lines)

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

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> DecodeReport:
        """Return the report that `to_dict` wrote as ``document``.

        Raises
        ------
        InvalidInputError
            If an entry is missing or contradicts another.
        """
        document = _DOCUMENT(document, "")
        cycles = tuple(CycleRecord(**_pick(CycleRecord, c)) for c in document["cycles"])
        return cls._rebuilt(document, cycles, document["totals"])

    @classmethod
    def _rebuilt(
        cls, header: dict[str, Any], cycles: tuple[CycleRecord, ...], totals: dict[str, Any]
    ) -> DecodeReport:
        report = cls(
            **{name: header[name] for name in _WRITTEN},
            prefill=PrefillRecord(**_pick(PrefillRecord, header["prefill"])),
            cycles=cycles,
        )
        if totals != report._totals():
            raise InvalidInputError("the totals are not those of the cycles; the report is damaged")
        return report

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

    @classmethod
    def read_jsonl(cls, path: str | os.PathLike[str]) -> DecodeReport:
        """Read what `write_jsonl` wrote.

        Parameters
        ----------
        path : str or path-like

        Returns
        -------
        DecodeReport
            Equal to the one that was written.

        Raises
        ------
        InvalidInputError
            If the file is no report, is of another version or was cut short. The message names
            the file and the line.
        OSError
            If it cannot be opened.

        Notes
        -----
        The file has at most 128 MiB and is read line by line, each as
        :mod:`specfit_opt.files.strict_json` says.
        """
        name = printable(path)
        header: dict[str, Any] | None = None
        cycles: list[CycleRecord] = []
        totals: dict[str, Any] | None = None
        for number, line in read_json_lines(path, limit=MAX_BYTES):
            expected = _HEADER if header is None else _CYCLE_OR_TOTALS
            where = f"{name}, line {number}"
            if totals is not None:
                raise InvalidInputError(f"{where}: the totals should be the last line")
            with named(where):
                line = expected(line, "")
                if header is None:
                    header = line
                elif line["type"] == "totals":
                    totals = {key: value for key, value in line.items() if key != "type"}
                else:
                    cycles.append(CycleRecord(**_pick(CycleRecord, _CYCLE(line, ""))))
        if header is None or totals is None:
            missing = "the header is" if header is None else "the totals are"
            raise InvalidInputError(f"{name}: {missing} missing: the report was cut short")
        with named(name):
            return cls._rebuilt(header, tuple(cycles), totals)

    def _headline(self) -> str:
        parts = [
            f"policy {self.policy}",
            f"drafter {self.drafter}" if self.drafter else "no drafter",
            f"predictor {self.predictor}" if self.predictor else "no routing predictor",
            "sampled" if self.do_sample else "greedy",
        ]
        if self.device:
            parts.append(" ".join(filter(None, [self.device, self.dtype])))
        prompts = f", {self.prompts} prompts" if self.prompts != 1 else ""
        return f"{self.model or 'decode'}: {', '.join(parts)}{prompts}"

    def _accepted(self) -> str:
        drafted = self.totals.verified - self.totals.passes
        if not drafted:
            return ", none drafted" if not self.totals.drafted else ", no drafted one among them"
        return f", {self.totals.acceptance:.1%} of the drafted ones accepted"

    def _cycle_time(self) -> str:
        predicted, measured = self.predicted_cycle_seconds, self.measured_cycle_seconds
        if predicted is None or measured is None:
            mean = self.totals.seconds / self.totals.passes
            return f"{seconds(mean)} measured, nothing predicted"
        error = self.prediction_error
        off = "" if error is None else f", median error {error:.1%}"
        return f"{seconds(measured)} measured against {seconds(predicted)} predicted{off}"

    def _settings(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in _WRITTEN}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}

    def _totals(self) -> dict[str, Any]:
        return {
            **self.totals.to_dict(),
            "new_tokens": self.new_tokens,
            "predicted_cycle_seconds": self.predicted_cycle_seconds,
            "measured_cycle_seconds": self.measured_cycle_seconds,
            "prediction_error": _finite(self.prediction_error),
            "expected_tokens_per_pass": self.expected_tokens_per_pass,
        }


#: What a file's header holds besides the prefill, and what decodes must share to be merged.
_WRITTEN = tuple(
    f.name for f in dataclasses.fields(DecodeReport) if f.name not in ("prefill", "cycles")
)
_SETTINGS = tuple(
    name
    for name in _WRITTEN
    if name not in ("prompts", "prompt_tokens", "assumptions", "warnings", "cost_source")
)


_SETTING_KINDS: dict[str, Kind] = {
    "model": Text(empty=True),
    "policy": Text(empty=True),
    "drafter": Maybe(Text(empty=True)),
    "predictor": Maybe(Text(empty=True)),
    "store": Text(empty=True),
    "cache_policy": Text(empty=True),
    "link_bandwidth": Maybe(_FIGURE),
    "device": Text(empty=True),
    "dtype": Text(empty=True),
    "n_layers": Whole(),
    "n_experts": Whole(),
    "top_k": Whole(),
    "slots": ListOf(Whole()),
    "do_sample": Flag(),
    "prompts": Whole(1),
    "prompt_tokens": Whole(),
    "cost_source": Maybe(Text(empty=True)),
    "assumptions": ListOf(Text(empty=True)),
    "warnings": ListOf(Text(empty=True)),
}


def _keys(kind: type[Any]) -> dict[str, Kind]:
    """Return the fields of a record; what they may be is checked where it is built."""
    return {f.name: Anything() for f in dataclasses.fields(kind)}


# What is in a report besides can be computed from it.
_CYCLE = Record(_keys(CycleRecord), others=True)
_SETTINGS_AND_PREFILL: dict[str, Kind] = {
    **{name: Anything() for name in _WRITTEN},
    "prefill": Record(_keys(PrefillRecord), others=True),
}
_DOCUMENT = Record(
    {**_SETTINGS_AND_PREFILL, "cycles": ListOf(_CYCLE), "totals": MapOf(Anything())}, others=True
)
_HEADER = Record(
    {
        "type": OneOf(("header",)),
        "format": OneOf((_FORMAT,)),
        "version": OneOf((_VERSION,)),
        **_SETTINGS_AND_PREFILL,
    }
)
_CYCLE_OR_TOTALS = Record({"type": OneOf(("cycle", "totals"))}, others=True)


def _settle(record: CycleRecord | PrefillRecord) -> None:
    """Make every figure a plain int or float, and check that it is one that can be."""
    kinds: dict[str, Kind] = {}
    for f in dataclasses.fields(record):
        kinds[f.name] = _FIGURE if "float" in str(f.type) else Whole()
        if "None" in str(f.type):
            kinds[f.name] = Maybe(_FIGURE)
            value = getattr(record, f.name)
            if isinstance(value, (float, np.floating)) and not math.isfinite(value):
                object.__setattr__(record, f.name, None)  # nothing that could be predicted
    settle(record, kinds)


def _check_lookups(record: CycleRecord | PrefillRecord, where: str) -> None:
    if record.hits + record.misses != record.lookups:
        raise InvalidInputError(
            f"{where} has {record.hits} hits and {record.misses} misses but {record.lookups} "
            "lookups; the two must add up"
        )


def _fields(record: Any) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


def _pick(kind: type[Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that ``kind`` takes; the others can be computed from them."""
    return {f.name: entries[f.name] for f in dataclasses.fields(kind)}


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else math.nan


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
