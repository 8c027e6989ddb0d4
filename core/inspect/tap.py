"""Measures one input of linear layers while a model runs."""

from __future__ import annotations

import numpy as np

from core.errors import UserError
from core.inspect.activations import ActivationLayer, Place

_LEVELS = 127  # of int8 on either side, symmetric
_ROWS = 64  # tokens that are rounded at a time


class Tap:
    """Collects what an `ActivationLayer` holds. Weights that share the input give the same x again: it counts once."""

    def __init__(
        self, name: str, layer: int | None, place: Place, expert: int | None, tensors: tuple[str, ...], channels: int
    ) -> None:
        self._who = (name, layer, place, expert, tensors)
        self._figures: tuple[int, np.ndarray, np.ndarray, np.ndarray, float, float] | None = None
        self._weight_max = np.zeros(channels, np.float32)

    def measure(self, x: np.ndarray) -> None:
        """x: float32 [tokens, channels]. Raises UserError where it is not finite."""
        if self._figures is not None:
            return
        largest = np.maximum(x.max(axis=0, initial=0.0), -x.min(axis=0, initial=0.0))
        if not np.isfinite(largest).all():
            raise UserError(
                f"The input of {self._who[0]} is not finite, so the model's weights are damaged before it.",
                "Run `bitsmith info --scan` to find the tensor.",
            )
        squares = np.einsum("tc,tc->c", x, x, dtype=np.float64, optimize=False)
        rms = np.sqrt(squares / max(len(x), 1)).astype(np.float32)
        tokens = np.maximum(x.max(axis=1, initial=0.0), -x.min(axis=1, initial=0.0))
        snr = int8_snr(x, np.full(len(x), tokens.max(initial=0.0))), int8_snr(x, tokens)
        self._figures = (len(x), largest, rms, tokens, *snr)

    def weigh(self, rows: np.ndarray) -> None:
        """rows: float32 [R, channels] of a weight."""
        np.maximum(self._weight_max, rows.max(axis=0), out=self._weight_max)
        np.maximum(self._weight_max, -rows.min(axis=0), out=self._weight_max)

    def result(self) -> ActivationLayer:
        if self._figures is None:  # an expert that no token reached
            nothing = np.zeros_like(self._weight_max)
            empty = np.zeros(0, np.float32)
            return ActivationLayer(*self._who, 0, nothing, nothing, self._weight_max, empty, np.nan, np.nan)
        count, largest, rms, tokens, by_tensor, by_token = self._figures
        return ActivationLayer(*self._who, count, largest, rms, self._weight_max, tokens, by_tensor, by_token)


def int8_snr(x: np.ndarray, amax: np.ndarray) -> float:
    """The median over the tokens of 10·log10(Σx² / Σ(x−x̂)²) in dB, x̂ the nearest whole multiple of amax / 127.

    x: float32 [tokens, channels]; amax: [tokens]. Tokens of only zeros do not count; NaN when there is no other. Inf
    where most tokens are met exactly.
    """
    ratios = []
    for start in range(0, len(x), _ROWS):
        step = amax[start : start + _ROWS, None].astype(np.float32) / np.float32(_LEVELS)
        some = step[:, 0] > 0
        part = x[start : start + _ROWS][some] / step[some]  # in steps: they cancel
        error = part - np.rint(part)
        signal, noise = (np.einsum("tc,tc->t", a, a, dtype=np.float64) for a in (part, error))
        with np.errstate(divide="ignore"):
            ratios.append(10 * np.log10(signal[signal > 0] / noise[signal > 0]))
    values = np.concatenate(ratios) if ratios else np.zeros(0)
    return float(np.median(values)) if len(values) else np.nan
