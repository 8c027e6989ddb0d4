"""Rotary frequencies of a decoder, one for each pair of values that turn together, with every way to stretch them.

Sources: linear and NTK ('dynamic') scaling as transformers defines them, YaRN (arXiv 2309.00071), LongRoPE
(arXiv 2402.13753), Llama 3.1's wavelength bands.
"""

from __future__ import annotations

import math

import numpy as np

from core.errors import UserError
from core.models.config import DecoderConfig, RopeConfig

BETA_FAST, BETA_SLOW = 32.0, 1.0  # YaRN's ramp: rotations within the original context
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def rope_frequencies(config: DecoderConfig, capacity: int, local: bool = False) -> tuple[np.ndarray, float]:
    """Radians a position, float32 [pairs], and the scale of what is turned.

    local: of the sliding layers, where they have a base of their own. capacity: positions that there will be: longrope
    has one set of factors for texts within the original context and one for longer ones, 'dynamic' stretches to it;
    both are chosen once, as keys in the cache are turned already. Raises UserError for a kind that is not known.
    """
    try:
        with np.errstate(all="raise", under="ignore"):
            frequencies, scale = _frequencies(config, capacity, local and config.rope.theta_local > 0)
            found = frequencies.astype(np.float32)
        if not (np.isfinite(found).all() and 0.0 < scale < math.inf):  # a NaN in the settings raises nothing
            raise ValueError("not finite")
    except (ArithmeticError, ValueError, TypeError) as error:  # math's own: logarithm of a negative number
        raise UserError(
            "The rope settings of the model lead to frequencies that are no numbers.",
            "Compare the configuration with the model's original.",
        ) from error
    return found, scale


def _frequencies(config: DecoderConfig, capacity: int, local: bool) -> tuple[np.ndarray, float]:
    """float64 [pairs] and the scale."""
    rope = config.rope
    if not 0.0 < rope.partial <= 1.0:
        raise UserError(
            f"{rope.partial:g} of each head's values can not be turned.",
            "Compare the configuration with the model's original.",
        )
    kind, theta = (rope.kind_local, rope.theta_local) if local else (rope.kind, rope.theta)
    width = int(config.head_dim * rope.partial) // 2 * 2
    powers = np.arange(0, width, 2, dtype=np.float64) / max(width, 1)
    plain = theta**-powers
    scale = 1.0
    if kind == "linear":
        plain = plain / rope.factor
    elif kind == "dynamic":
        longest = max(capacity, config.context)
        stretch = rope.factor * longest / config.context - (rope.factor - 1.0)
        plain = (theta * stretch ** (width / (width - 2))) ** -powers
    elif kind == "llama3":
        plain = plain / np.array(rope.llama3_factors(width))
    elif kind == "yarn" and not rope.long_factor:
        plain = _yarn(rope, plain, theta, rope.original_context or config.context)
        scale = rope.yarn_paper_scale if rope.attention_factor is None else rope.attention_factor
    elif rope.long_factor and kind in ("yarn", "longrope"):  # Phi-3's first files call it yarn
        original = rope.original_context or config.context
        factors = np.array(rope.long_factor if capacity > original else rope.short_factor)
        if factors.shape != plain.shape:
            raise UserError(
                f"The model has {len(factors)} rope factors, where each head has {len(plain)} pairs to turn.",
                "Compare the configuration with the model's original.",
            )
        plain, scale = plain / factors, rope.attention_scale
    elif kind != "default":
        raise UserError(
            f"The rope scaling '{kind}' is not known.", f"Known kinds are {', '.join(KINDS)}: look for a newer version."
        )
    return plain, scale


def _yarn(rope: RopeConfig, plain: np.ndarray, theta: float, original: int) -> np.ndarray:
    """Fast pairs keep their frequency, slow ones are divided by the factor, those between blend along a ramp."""
    width = 2 * len(plain)

    def dimension(rotations: float) -> float:
        return width * math.log(original / (rotations * 2.0 * math.pi)) / (2.0 * math.log(theta))

    low, high = dimension(rope.beta_fast or BETA_FAST), dimension(rope.beta_slow or BETA_SLOW)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0.0, 1.0)
    extrapolated = 1.0 if rope.extrapolation_factor is None else rope.extrapolation_factor
    keep = (1.0 - ramp) * extrapolated
    return plain * keep + plain / rope.factor * (1.0 - keep)
