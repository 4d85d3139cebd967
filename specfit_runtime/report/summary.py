"""A decode report in a few lines, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specfit_opt.text import byte_size, figure, seconds

from .totals import PARTS

if TYPE_CHECKING:
    from .decode_report import DecodeReport


def summary(report: DecodeReport) -> str:
    """Return what a report says, without a final line feed."""
    lines = [
        *_setting(report),
        *(_decoding(report) if report.cycles else [_NO_PASS]),
        ("predicted from", report.cost_source),
        *(("assumed", text) for text in report.assumptions),
        *(("warning", text) for text in report.warnings),
    ]
    told = [f"  {label.ljust(16)} {text}" for label, text in lines if text]
    return "\n".join([_headline(report), *told])


_NO_PASS = ("decoding", "no pass: the output ended with the token that the prefill gave")


def _headline(report: DecodeReport) -> str:
    parts = [
        f"policy {report.policy}",
        f"drafter {report.drafter}" if report.drafter else "no drafter",
        f"predictor {report.predictor}" if report.predictor else "no routing predictor",
        "sampled" if report.do_sample else "greedy",
    ]
    if report.device:
        parts.append(" ".join(filter(None, [report.device, report.dtype])))
    prompts = f", {report.prompts} prompts" if report.prompts != 1 else ""
    return f"{report.model or 'decode'}: {', '.join(parts)}{prompts}"


def _setting(report: DecodeReport) -> list[tuple[str, str]]:
    """Return where the experts were, and what the prefill took."""
    lines = []
    if report.link_bandwidth is not None:
        lines.append(
            (
                "emulated link",
                f"{byte_size(report.link_bandwidth)}/s: times are those of this link, which the "
                "machine does not have",
            )
        )
    where = [report.store, *([f"{report.cache_policy} cache"] if report.cache_policy else [])]
    if report.slots:
        low, high = min(report.slots), max(report.slots)
        slots = f"{low}" if low == high else f"{low} to {high}"
        where.append(f"{slots} of {report.n_experts} experts per layer")
    lines.append(("experts kept in", ", ".join(where)))
    prefill = report.prefill
    lines.append(
        (
            "prefill",
            f"{prefill.tokens} tokens in {seconds(prefill.seconds)} "
            f"(waiting for weights {seconds(prefill.transfer_seconds)}), "
            f"{byte_size(prefill.bytes)} moved; not in the figures below",
        )
    )
    return lines


def _decoding(report: DecodeReport) -> list[tuple[str, str]]:
    """Return what the cycles came to."""
    totals = report.totals
    promised = report.expected_tokens_per_pass
    expected = "" if promised is None else f" (expected {figure(promised)})"
    prefetch = ""
    if totals.prefetched:
        prefetch = (
            f"{totals.prefetched} experts, {totals.prefetch_hits} hits, "
            f"{byte_size(totals.prefetch_bytes)} of which "
            f"{byte_size(totals.wasted_prefetch_bytes)} wasted; about "
            f"{seconds(totals.hidden_seconds)} of waiting hidden"
        )
    parts = (
        f"{part} {totals.share(part):.1%} ({seconds(getattr(totals, f'{part}_seconds'))})"
        for part in PARTS
    )
    return [
        (
            "speed",
            f"{figure(totals.tokens_per_second)} tokens/s: {totals.tokens} tokens in "
            f"{totals.passes} passes, {seconds(totals.seconds)}",
        ),
        (
            "tokens per pass",
            f"{figure(totals.tokens_per_pass)}{expected}, {figure(totals.verified_per_pass)} nodes "
            f"verified{_accepted(report)}",
        ),
        (
            "per token",
            f"{figure(totals.experts_per_token)} experts used, "
            f"{figure(totals.moved_per_token)} moved, {byte_size(totals.bytes_per_token)}",
        ),
        (
            "cache hits",
            f"{totals.hit_rate:.1%} of {totals.lookups} lookups"
            + (f" in {totals.scratch_rounds} rounds" if totals.scratch_rounds else ""),
        ),
        ("prefetch", prefetch),
        ("time", ", ".join(parts)),
        ("cycle time", _cycle_time(report)),
    ]


def _accepted(report: DecodeReport) -> str:
    totals = report.totals
    if totals.verified > totals.passes:
        return f", {totals.acceptance:.1%} of the drafted ones accepted"
    return ", no drafted one among them" if totals.drafted else ", none drafted"


def _cycle_time(report: DecodeReport) -> str:
    predicted, measured = report.predicted_cycle_seconds, report.measured_cycle_seconds
    if predicted is None or measured is None:
        mean = report.totals.seconds / report.totals.passes
        return f"{seconds(mean)} measured, nothing predicted"
    error = report.prediction_error
    off = "" if error is None else f", median error {error:.1%}"
    return f"{seconds(measured)} measured against {seconds(predicted)} predicted{off}"
