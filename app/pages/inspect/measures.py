"""What the map says of a tensor, where its cells are, and the columns of the table beside it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from app.models.table import Column, natural_key
from app.models.tensors import layer_text
from app.pages.inspect.tensor_pictures import short_name
from app.plots.model_map import MapTensor
from core.inspect.measures import MEASURES, MapMeasure, Measure
from core.tensor_info import Role, TensorInfo
from core.units import format_count, format_decimals, format_number

if TYPE_CHECKING:
    from core.inspect.survey import SurveyRow


def value_of(row: SurveyRow, measure: MapMeasure) -> float | None:
    """The number to colour by; None where the measure does not apply."""
    return row.measure(measure.measure)


def words_about(row: SurveyRow | None, name: str, measure: MapMeasure) -> str:
    """'layers.3.mlp.down_proj.weight: outlier ratio 12.3 (largest 0.53 …)'."""
    if row is None:
        return f"{name}: not measured yet"
    value = value_of(row, measure)
    if value is None:
        problem = row.predicted.problem if row.predicted is not None else ""
        return f"{name}: {measure.title.lower()} does not apply" + (f", {problem}" if problem else "")
    words = f"{name}: {_lower(measure.title)} {measure.text(value)}"
    if measure.of_format:
        return words + (f" in {row.predicted.format}" if row.predicted is not None else "")
    if row.statistics is not None:
        s = row.statistics
        words += f" (largest {format_number(s.amax)}, 99.9 % are within {format_number(s.p999)})"
        if s.nonfinite:
            words += f"; {format_count(s.nonfinite)} values are not finite"
    return words


def _lower(title: str) -> str:
    return title if title.endswith("SNR") else title[:1].lower() + title[1:]


SNR = next(m for m in MEASURES if m.measure is Measure.PREDICTED_SNR)
_LAYER = re.compile(r"^(.*?\b(?:layers|blk|h|blocks)\.\d+\.)")
_EXPERT = re.compile(r"\bexperts\.\d+\.")


def map_rows(tensors: Sequence[TensorInfo]) -> tuple[MapTensor, ...]:
    """Every tensor's place on the map: a row a role, or where a layer has several of a role, a row each."""
    crowded = _crowded(tensors)
    order = {role: i for i, role in enumerate(Role)}
    placed: dict[str, list[MapTensor]] = {}
    first: dict[str, int] = {}
    for t in tensors:
        row = t.role.value
        if t.layer is not None and t.role in crowded:
            row = _stem(t.name)
        if t.expert is not None or t.experts:
            row += ", experts"
        if row not in placed:
            placed[row], first[row] = [], order[t.role]
        placed[row].append(MapTensor(t.name, row, t.layer))
    return tuple(tensor for row in sorted(placed, key=first.__getitem__) for tensor in placed[row])


def _crowded(tensors: Sequence[TensorInfo]) -> set[Role]:
    places = Counter((t.role, t.layer, t.expert) for t in tensors if t.layer is not None)
    return {role for (role, _, _), count in places.items() if count > 1}


def _stem(name: str) -> str:
    """'model.layers.3.input_layernorm.weight' → 'input_layernorm'."""
    rest = _LAYER.sub("", name)
    return _EXPERT.sub("", rest).removesuffix(".weight")


Read = Callable[["SurveyRow"], "float | None"]


def survey_columns(rows: Mapping[str, SurveyRow]) -> tuple[Column, ...]:
    """Rows of the table are TensorInfo; figures are looked up in `rows`, which fills while the survey runs."""

    def figure(
        title: str, term: str, read: Callable[[SurveyRow], float | None], text: Callable[[float], str]
    ) -> Column:
        def value(t: TensorInfo) -> float | None:
            row = rows.get(t.name)
            return read(row) if row is not None else None

        def shown(t: TensorInfo) -> str:
            found = value(t)
            return "–" if found is None else text(found)

        def key(t: TensorInfo) -> float:
            found = value(t)
            return -math.inf if found is None or math.isnan(found) else found

        return Column(title, shown, key, number=True, term=term)

    def statistic(name: str) -> Read:
        return lambda row: getattr(row.statistics, name) if row.statistics is not None else None

    def predicted(name: str) -> Read:
        return lambda row: getattr(row.predicted, name) if row.predicted and not row.predicted.problem else None

    def about(t: TensorInfo) -> str:
        s = rows[t.name].statistics if t.name in rows else None
        if s is None:
            return t.name
        return f"{t.name}: largest |w| {format_number(s.amax)}, kurtosis {format_decimals(s.kurtosis, 2)}"

    def form(t: TensorInfo) -> str:
        row = rows.get(t.name)
        return row.predicted.format if row is not None and row.predicted is not None else "–"

    return (
        Column(
            "Tensor",
            lambda t: short_name(t.name),
            lambda t: natural_key(t.name),
            term="tensor",
            mono=True,
            tooltip=about,
        ),
        Column("Layer", lambda t: layer_text(t.layer), lambda t: _number(t.layer), number=True, term="layer"),
        figure("Outlier ratio", "outlier ratio", statistic("outlier_ratio"), lambda v: format_decimals(v, 2)),
        figure("Largest |w|", "range", statistic("amax"), lambda v: format_decimals(v, 4)),
        figure("Kurtosis", "kurtosis", statistic("kurtosis"), lambda v: format_decimals(v, 2)),
        Column("Format", form, term="format"),
        figure("SNR (dB)", "SNR", predicted("snr_db"), lambda v: SNR.text(v).removesuffix(" dB")),
        figure("Gain (dB)", "gain by finer scales", predicted("finer_gain_db"), lambda v: format_decimals(v, 1)),
    )


def _number(layer: int | None) -> int:
    return -1 if layer is None else layer
