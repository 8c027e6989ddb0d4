"""compressed-tensors' `transform_config`: weights that are stored rotated, for inputs that are while the model runs.

What llm-compressor's SpinQuant and QuIP write. Transforms of a weight ('weight_input', 'weight_output') were made when
the file was, and ask for nothing; one of a linear layer's input ('input') multiplies x by a Hadamard matrix ÷ √size,
over runs of `head_dim` values where that is given, and the weight is W R. Everything else is refused, since values mean
nothing without it. compressed-tensors 0.20, `transform/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.packed.weight import AGAIN
from core.patterns import why_slow
from core.tensor_info import Role, TensorInfo
from core.units import format_count
from kernels.rotation import Rotation, of_matrix

_DONE = ("weight_input", "weight_output")
_TYPES = ("hadamard", "random-hadamard")
_WITHOUT = "Use a version of the model that was made without it."
_NO_LINEAR = (Role.EMBED, Role.NORM, Role.BIAS, Role.ROPE, Role.CONV)
_INPUT = re.compile(r"\.[^.]+_(?:input|output|q_attn|k_cache)\.(?:weight|perm)$")


def stored_matrices(tensors: Iterable[TensorInfo], config: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Tensors that are matrices of transforms, '….down_proj.R4_input.weight', by name."""
    names = tuple(_groups(config))
    return {t.name: t for t in tensors if _INPUT.search(t.name) and _group_of(t.name) in names}


def input_rotations(
    checkpoint: Checkpoint, weights: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]
) -> dict[str, Rotation]:
    """The rotation of each weight ('….weight') whose input is rotated while the model runs. weights: shapes by name.

    Raises UserError for a transform that happens while the model runs and is none of these.
    """
    found: dict[str, Rotation] = {}
    known: dict[tuple[str, int], Rotation] = {}
    for group, scheme in _groups(config).items():
        for given in _list(scheme.get("apply"), group):
            if not isinstance(given, Mapping):
                raise _wrong(group)
            if given.get("location") in _DONE:
                continue
            _check(group, scheme, given)
            for name in _matching(weights, given):
                run = _run(group, scheme, name, weights[name][-1])
                if name in found:
                    raise UserError(
                        f"config.json has two transforms of what comes into '{name}', which can not be run here.",
                        _WITHOUT,
                    )
                if (group, run) not in known:
                    known[group, run] = _rotation(checkpoint, group, scheme, name, run)
                found[name] = known[group, run]
                if given.get("inverse") and not np.array_equal(found[name].matrix(), found[name].matrix().T):
                    raise UserError(
                        f"The transform '{group}' of config.json is taken back where it should be done ('inverse').",
                        _WITHOUT,
                    )
    return found


def _groups(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    transforms = config.get("transform_config")
    if not transforms:
        return {}
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    if not isinstance(groups, Mapping) or not all(isinstance(g, Mapping) for g in groups.values()):
        raise UserError("The transform_config of config.json is not as compressed-tensors writes it.", AGAIN)
    return groups


def _list(value: object, group: str) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple):
        raise _wrong(group)
    return list(value)


def _wrong(group: str) -> UserError:
    return UserError(f"The transform '{group}' of config.json is not as compressed-tensors writes it.", AGAIN)


def _check(group: str, scheme: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise UserError for a transform that nothing here does."""
    location, kind = str(given.get("location")), str(scheme.get("type"))
    where = {"q_attn": "queries", "k_cache": "keys", "output": "what comes out of layers"}.get(location, location)
    if location != "input":
        raise UserError(
            f"The transform '{group}' of config.json changes {where} while the model runs, which can not be done here.",
            _WITHOUT,
        )
    if kind not in _TYPES:
        raise UserError(
            f"The transform '{group}' of config.json is of the type '{kind}', which can not be done here.",
            f"Those that can are {', '.join(_TYPES)}.",
        )
    if scheme.get("randomize"):
        raise UserError(
            f"The transform '{group}' of config.json exchanges columns at random ('randomize'), which can not be done "
            "here.",
            _WITHOUT,
        )


def _matching(weights: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> list[str]:
    targets, ignored = (_list(given.get(key) or [], key) for key in ("targets", "ignore"))
    modules = {name: name.removesuffix(".weight") for name in weights}
    return [
        name
        for name, module in modules.items()
        if any(_matches(module, t) for t in targets) and not any(_matches(module, t) for t in ignored)
    ]


def _matches(module: str, target: object) -> bool:
    """As compressed-tensors does: a name, 're:' and a pattern from the name's beginning, or the class of a module."""
    if not isinstance(target, str):
        raise UserError(f"{target!r} in config.json is no name of a module.", AGAIN)
    if not target.startswith("re:"):
        return target in (module, "Linear")
    pattern = target.removeprefix("re:")
    try:
        slow = why_slow(re.compile(pattern).pattern)
    except re.error as error:
        raise UserError(f"'{pattern}' in config.json is not a valid pattern: {error}.", AGAIN) from None
    if slow:
        raise UserError(f"The pattern '{pattern}' in config.json could take forever: {slow}.", AGAIN)
    return re.match(pattern, module) is not None


def _run(group: str, scheme: Mapping[str, Any], name: str, columns: int) -> int:
    size = scheme.get("head_dim")
    if size is None:
        return columns
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or columns % size:
        raise UserError(
            f"The transform '{group}' of config.json has runs of {size!r}, which do not divide the "
            f"{format_count(columns)} columns of '{name}'.",
            AGAIN,
        )
    return size


def _rotation(checkpoint: Checkpoint, group: str, scheme: Mapping[str, Any], name: str, run: int) -> Rotation:
    """Of the matrix in the file, or Sylvester's where there is none and the type has no other."""
    own = f"{name.removesuffix('.weight')}.{group}_input.weight"
    there = [t for t in checkpoint.tensors if _group_of(t.name) == group and t.name.endswith("_input.weight")]
    fitting = [t for t in there if t.shape == (run, run)]
    stored = next((t for t in fitting if t.name == own), next(iter(fitting), None))
    if stored is None:
        if scheme.get("type") != "hadamard":
            raise UserError(
                f"The matrix of the transform '{group}', '{own}', is not there, and without it '{name}' means nothing.",
                AGAIN,
            )
        try:
            return Rotation.plain(run)
        except ValueError:
            raise UserError(
                f"The transform '{group}' of config.json rotates {format_count(run)} values, which is no power of two.",
                AGAIN,
            ) from None
    found = of_matrix(checkpoint.read_rows(stored))
    if found is None:
        raise UserError(f"'{stored.name}' is no Hadamard matrix that can be multiplied with quickly.", _WITHOUT)
    return found


def _group_of(name: str) -> str:
    """'model.layers.0.mlp.down_proj.R4_input.weight' → 'R4'; '' for another tensor."""
    if not _INPUT.search(name):
        return ""
    return re.sub(r"_(?:input|output|q_attn|k_cache)$", "", name.split(".")[-2])


def is_linear(t: TensorInfo) -> bool:
    """Whether a plain tensor is the weight of a linear layer."""
    return t.name.endswith(".weight") and len(t.shape) == 2 and t.role not in _NO_LINEAR
