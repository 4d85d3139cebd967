"""What one decode did: a record for every pass, totals, a summary and a file."""

from __future__ import annotations

from .decode_report import DecodeReport
from .records import CycleRecord, PrefillRecord
from .totals import PARTS, DecodeTotals

__all__ = ["PARTS", "CycleRecord", "DecodeReport", "DecodeTotals", "PrefillRecord"]
