"""Scales of a cache in FP8 that a folder has beside its weights: read, and held against what its config.json says.

A cache whose codes are read under another contract than they were written is garbage that nobody sees, so what
contradicts itself is refused. A stored scale is multiplied with the code, as loaders have it (vLLM: amax ÷ 448).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.quantized_source import quantization_config
from core.errors import UserError
from core.kv.scheme import CacheScheme
from core.tensor_info import TensorInfo
from core.units import format_count
from kernels.program import CacheScales

# compressed-tensors: '….self_attn.k_scale'. ModelOpt: '….self_attn.k_proj.k_scale'. Before them: '….kv_scale' for both.
_ENDINGS = {".k_scale": (0,), ".v_scale": (1,), ".kv_scale": (0, 1)}
NAMES = tuple(_ENDINGS)
_SIDES = ("keys", "values")
_HINT = "Run it with another cache, such as F16, or get the model's files again."
_STRATEGIES = {"tensor": False, "attn_head": True}  # of compressed-tensors; whether each head has a scale of its own


@dataclass(frozen=True)
class FileScales:
    """layers: (of keys, of values) for each layer, one number for all heads or one a head; (): the file has none.
    problem: why those that are there can not be used."""

    layers: CacheScales = ()
    problem: UserError | None = None

    @property
    def by_head(self) -> bool:
        return any(len(side) > 1 for pair in self.layers for side in pair)

    def of(self, scheme: CacheScheme) -> CacheScales:
        """Those that hold for a scheme: of E4M3, as it is cached otherwise. Raises UserError where there is a problem.

        A rotation, and keys before the rotary step, have other ranges than those that were measured.
        """
        used = _uses(scheme)
        if not any(used):
            return ()
        if self.problem is not None:
            raise self.problem
        return tuple((keys if used[0] else (), values if used[1] else ()) for keys, values in self.layers)

    def words(self, scheme: CacheScheme) -> str:
        """Which scales a cache in FP8 has: 'with the file's scales'; '' for other formats."""
        given = [bool(form.given) for form in (scheme.key_format, scheme.value_format)]
        used = _uses(scheme) if self.layers else (False, False)
        if not any(given):
            return ""
        if not any(used):
            return "with scale 1"
        both = all(b for a, b in zip(given, used, strict=True) if a)
        own = "the file's scales" + (" of heads" if self.by_head else "")
        return f"with {own}" if both else f"{'keys' if used[0] else 'values'} with {own}, the rest with scale 1"


def own_cache(checkpoint: Checkpoint) -> str:
    """The format that a file's own scales are for: 'FP8'; 'F16' for a file without any. Looks at names alone."""
    return "FP8" if _stored(checkpoint) else "F16"


def file_scales(checkpoint: Checkpoint, layers: int, heads: int) -> FileScales:
    """What a file has for a model of so many layers, each with so many key heads. A contradiction is in `problem`."""
    tensors = _stored(checkpoint)
    try:
        _check_said(_said(checkpoint), bool(tensors))
        return FileScales(_read(checkpoint, tensors, layers, heads) if tensors else ())
    except UserError as error:
        return FileScales(problem=error)


def _uses(scheme: CacheScheme) -> tuple[bool, bool]:
    """Whether keys and values are in E4M3 as they would be cached without any switch."""
    keys, values = (bool(form.given) and "E5M2" not in form.name for form in (scheme.key_format, scheme.value_format))
    return keys and not (scheme.rotate_keys or scheme.before_rope), values and not scheme.rotate_values


def _stored(checkpoint: Checkpoint) -> list[TensorInfo]:
    if checkpoint.container is Container.GGUF:
        return []
    return [t for t in checkpoint.stored.tensors if t.name.endswith(NAMES)]


def _said(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """The scheme that config.json gives the cache; {}: it says that there is none; None: it says nothing."""
    config = quantization_config(checkpoint.stored)
    if config is None or not {"kv_cache_scheme", "kv_cache_quant_algo"} & set(config):
        return None
    if "kv_cache_scheme" not in config:  # hf_quant_config.json alone
        name = config["kv_cache_quant_algo"]
        return {} if not name else {"num_bits": 8, "type": "float"} if str(name).upper() == "FP8" else {"type": name}
    scheme = config["kv_cache_scheme"]
    if scheme is None:
        return {}
    return scheme if isinstance(scheme, Mapping) else {"type": scheme}


def _check_said(said: Mapping[str, Any] | None, there: bool) -> None:
    """Raise UserError for a scheme that is none of FP8 with stored scales, or none where scales are stored."""
    if said is None or (not said and not there):
        return
    if not said:
        raise UserError("It has scales for a cache in FP8, and config.json says that its cache has no scheme.", _HINT)
    if (said.get("num_bits", 8), said.get("type")) != (8, "float"):
        kind = f"{said.get('num_bits', '')}-bit {said.get('type')}".removeprefix("-bit ")
        raise UserError(f"config.json gives the cache the scheme {kind}, which is not FP8.", _HINT)
    if said.get("dynamic"):
        raise UserError("config.json wants scales of the cache found while it runs, which is not done here.", _HINT)
    if said.get("symmetric") is False:
        raise UserError("config.json wants an FP8 cache with zero points, which there are none of.", _HINT)
    strategy = said.get("strategy", "tensor")
    if strategy not in _STRATEGIES:
        raise UserError(f"config.json wants a scale of the cache for each {strategy}, which is not known here.", _HINT)


def _read(checkpoint: Checkpoint, tensors: Sequence[TensorInfo], layers: int, heads: int) -> CacheScales:
    said = _said(checkpoint) or {}
    by_head = _STRATEGIES[said["strategy"]] if "strategy" in said else None
    found: dict[tuple[int, int], tuple[str, tuple[float, ...]]] = {}
    for t in tensors:
        values = _values(checkpoint.stored, t, heads, by_head)
        if t.layer is None or not 0 <= t.layer < layers:
            raise UserError(f"'{t.name}' is of no layer of the model's {format_count(layers)}.", _HINT)
        for side in next(sides for ending, sides in _ENDINGS.items() if t.name.endswith(ending)):
            if (t.layer, side) in found:
                raise UserError(
                    f"'{found[t.layer, side][0]}' and '{t.name}' both are the scale of one layer's {_SIDES[side]}.",
                    _HINT,
                )
            found[t.layer, side] = t.name, values
    missing = next(((i, s) for i in range(layers) for s in (0, 1) if (i, s) not in found), None)
    if missing is not None:
        raise UserError(
            f"Layer {missing[0]} has no scale for the {_SIDES[missing[1]]} of a cache in FP8, and other layers do.",
            _HINT,
        )
    return tuple((found[i, 0][1], found[i, 1][1]) for i in range(layers))


def _values(stored: Checkpoint, t: TensorInfo, heads: int, by_head: bool | None) -> tuple[float, ...]:
    """A tensor's numbers: one, or one a head. by_head: which of them config.json says; None: nothing."""
    allowed = {None: {1, heads}, True: {heads}, False: {1}}[by_head]
    longest = max(t.shape, default=1)
    if t.dtype not in ("BF16", "F16", "F32") or t.values not in allowed or longest != t.values:
        shape = " × ".join(format_count(n) for n in t.shape) or "1"
        wanted = " or ".join(dict.fromkeys(format_count(n) for n in sorted(allowed)))
        raise UserError(f"'{t.name}' is {shape} of {t.dtype}, and should be {wanted} floats, one a scale.", _HINT)
    values = np.asarray(stored.read_rows(t), np.float32).reshape(-1)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise UserError(f"'{t.name}' holds {values.min():g}, and a scale is a finite number above 0.", _HINT)
    return tuple(float(v) for v in values)
