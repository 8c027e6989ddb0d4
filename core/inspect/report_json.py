"""A report as plain data for JSON. docs/inspect.md explains every key; sizes are bytes, errors weight units or dB."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.inspect.activations import ActivationLayer, Activations, Place
from core.inspect.compare_rows import row_data as compared_row
from core.inspect.findings import Finding
from core.inspect.remedies import Remedy
from core.inspect.report import Report, TensorReport
from core.inspect.statistics import ChannelStats, ValueStatistics, magnitude_edges
from core.inspect.survey import SurveyRow
from core.methods.record import read_record
from core.progress import ErrorStats

CHANNELS = 16  # outlier channels of an input that are listed


def report_data(report: Report) -> dict[str, Any]:
    """The JSON of a report; numbers that there are none for may be NaN or infinite, which JSON writes as null."""
    checkpoint, plan = report.checkpoint, report.plan
    data: dict[str, Any] = {
        "path": str(checkpoint.path),
        "container": checkpoint.container.value,
        "calibrated": read_record(checkpoint) or None,
        "architecture": checkpoint.architecture,
        "parameters": sum(t.values for t in checkpoint.tensors if not t.tied_to),
        "bytes": checkpoint.total_bytes,
        "target": plan.target.name if plan else None,
        "bytes_planned": plan.bytes_total if plan else None,
        "tensors": [row_data(row) for row in report.rows],
        "findings": [finding_data(finding, offered) for finding, offered in report.findings],
        "details": [tensor_data(tensor) for tensor in report.tensors],
        "activations": None,
        "compared": None,
    }
    if report.activations is not None:
        data["activations"] = activations_data(report.activations, report.wishes.threshold)
    if report.compared is not None:
        data["compared"] = {
            "path": str(report.other.path) if report.other else "",
            "tensors": [compared_row(row) for row in report.compared],
        }
    return data


def statistics_data(s: ValueStatistics) -> dict[str, Any]:
    names = "values finite nonfinite zeros min max amax mean std kurtosis p999 outlier_ratio"
    return {name: getattr(s, name) for name in names.split()}


def row_data(row: SurveyRow) -> dict[str, Any]:
    predicted = row.predicted
    return {
        "name": row.name,
        "role": row.role.value,
        "layer": row.layer,
        "expert": row.expert,
        "shape": list(row.shape),
        "dtype": row.dtype,
        "statistics": statistics_data(row.statistics) if row.statistics else None,
        "predicted": {
            "format": predicted.format,
            "snr_db": None if predicted.problem else predicted.snr_db,
            "nrmse": None if predicted.problem else predicted.nrmse,
            "sampled_values": predicted.sampled,
            "finer_gain_db": predicted.finer_gain_db,
            "problem": predicted.problem,
        }
        if predicted
        else None,
    }


def error_data(error: ErrorStats | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"snr_db": error.snr_db, "rms_error": error.rms_error, "max_error": error.max_error}


def finding_data(finding: Finding, offered: tuple[Remedy, ...]) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "tensor": finding.tensor,
        "text": finding.text,
        "axis": finding.axis or None,
        "channel": finding.channel,
        "ratio": finding.ratio,
        "minor": finding.minor,
        "remedies": [
            {
                "kind": r.kind.value,
                "title": r.title,
                "format": r.format,
                "rules": [rule.to_dict() for rule in r.rules],
                "method": r.method.value if r.method else None,
                "possible": r.possible,
                "why_not": r.why_not,
                "bytes_change": r.bytes_change,
                "before": error_data(r.before),
                "after": error_data(r.after),
                "gain_db": r.gain_db if r.possible else None,
                "sampled": r.sampled,
            }
            for r in offered
        ],
    }


def tensor_data(t: TensorReport) -> dict[str, Any]:
    s, error = t.statistics, t.error
    filled = np.flatnonzero(s.histogram[1:-1])
    first, last = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
    data: dict[str, Any] = {
        "name": t.tensor.name,
        "role": t.tensor.role.value,
        "shape": list(t.tensor.shape),
        "dtype": t.tensor.dtype,
        "expert": t.expert,
        "statistics": statistics_data(s),
        "histogram": {
            "edges": magnitude_edges()[first : last + 1].tolist() if filled.size else [],
            "counts": s.histogram[1 + first : 1 + last].tolist(),
            "below": int(s.histogram[0]),
            "above": int(s.histogram[-1]),
        },
        "outlier_channels": [dict(vars(c)) for c in t.outliers],
        "channels": {"output": channels_data(s.rows), "input": channels_data(s.columns)},
        "format": t.plan.format_name if t.plan else None,
        "action": t.plan.action.value if t.plan else None,
        "bytes_planned": t.plan.bytes.total if t.plan else None,
        "error": error_data(error.stats) if error else None,
        "problem": t.problem,
    }
    if error:
        data["error"]["nrmse"] = error.nrmse
        data["error"]["by_output_channel"] = numbers(error.rows.rms)
        data["error"]["by_input_channel"] = numbers(error.columns.rms)
    if t.grid:
        data["levels"] = {
            "group": t.group,
            "levels": numbers(t.grid.levels),
            "counts": t.grid.counts.tolist(),
            "used": t.grid.used,
        }
    return data


def channels_data(c: ChannelStats) -> dict[str, Any]:
    return {"max": numbers(c.max), "rms": numbers(c.rms), "median": numbers(c.median), "median_share": c.median_share}


def activations_data(found: Activations, threshold: float) -> dict[str, Any]:
    return {
        "tokens": len(found.tokens),
        "cut": found.cut,
        "threshold": threshold,
        "share_above": found.share_above(threshold),
        "inputs": [input_data(a, threshold) for a in found.layers],
        "breaking": [a.name for a in found.breaking()],
        "outlier_channels": {
            place.value: [dict(vars(c)) for c in found.depth_map(place).outliers(CHANNELS, threshold)]
            for place in found.places
            if place is not Place.HEAD
        },
    }


def input_data(a: ActivationLayer, threshold: float) -> dict[str, Any]:
    return {
        "name": a.name,
        "layer": a.layer,
        "place": a.place.value,
        "expert": a.expert,
        "tensors": list(a.tensors),
        "tokens": a.tokens,
        "channels": a.channels,
        "amax": a.amax,
        "ratio": a.ratio,
        "share_above": a.share_above(threshold),
        "int8_tensor_snr_db": a.tensor_snr_db,
        "int8_token_snr_db": a.token_snr_db,
        "breaks": a.breaks,
        "max": numbers(a.max),
        "rms": numbers(a.rms),
        "weight_max": numbers(a.weight_max),
    }


def numbers(values: np.ndarray) -> list[float]:
    """Six digits that count are more than what they were computed from is worth, and a quarter of the text."""
    return [float(f"{v:.6g}") for v in values.tolist()]
