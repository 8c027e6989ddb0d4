"""The figures above a tensor's pictures: of its weights, and of what a format leaves of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.widgets.tiles import Tiles
from core.units import format_count, format_decibels, format_decimals, format_number, format_percent

if TYPE_CHECKING:
    from core.inspect.error_map import ErrorMap
    from core.inspect.statistics import ValueStatistics

WEIGHT_FACTS = ("Range", "Standard deviation", "Kurtosis", "Outlier ratio", "Outlier channels", "Zeros", "Not finite")
ERROR_FACTS = ("SNR", "nRMSE", "Max error", "RMS error", "Rows seen")


def show_weight_facts(facts: Tiles, s: ValueStatistics, outliers: int) -> None:
    """outliers: how many channels are."""
    facts.set("Range", f"{format_number(s.min)} … {format_number(s.max)}")
    facts.set("Standard deviation", format_number(s.std))
    facts.set("Kurtosis", format_decimals(s.kurtosis, 2))
    facts.set("Outlier ratio", format_decimals(s.outlier_ratio, 2))
    facts.set("Outlier channels", format_count(outliers))
    facts.set("Zeros", format_percent(s.zeros / max(1, s.values)))
    facts.set("Not finite", format_count(s.nonfinite))


def show_error_facts(facts: Tiles, found: ErrorMap) -> None:
    """Of the rows that were seen so far."""
    e = found.stats
    facts.set("SNR", format_decibels(e.snr_db))
    facts.set("nRMSE", format_percent(found.nrmse, 2))
    facts.set("Max error", format_number(e.max_error, 3))
    facts.set("RMS error", format_number(e.rms_error, 3))
    facts.set("Rows seen", "all" if found.done >= 1 else format_percent(found.done, 0))
