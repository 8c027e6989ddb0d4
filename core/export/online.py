"""Rotations that happen while a model runs: which files can say so, and what they say.

compressed-tensors' `transform_config`: the weights of down projections are stored as W H, and a loader multiplies what
comes into them by H, over runs of so many values. vLLM makes H itself; other loaders may look for it in the file, where
llm-compressor writes it beside the first module that it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.errors import UserError
from core.export.compressed_tensors import ONLINE_GROUP
from core.export.ecosystem import module
from core.formats import Format, find_format
from core.models.gguf_tensors import MappedTensor
from core.targets import Target
from core.tensor_info import Role
from kernels.rotation import sylvester

if TYPE_CHECKING:
    from core.methods.choice import Calibrated
    from core.models.config import DecoderConfig

HINT = "Choose a compressed-tensors target such as w4a16-g64 or w8a8, or do without the online rotation."


def can_say_online(ecosystem: str) -> bool:
    """Whether folders of that ecosystem can say that an input is rotated."""
    return ecosystem == "compressed-tensors"


def why_no_online(target: Target) -> str:
    """'' where a target's files can say that an input is rotated, else a sentence that says that they can not."""
    if can_say_online(target.ecosystem):
        return ""
    return f"{target.name} has no place for a rotation that happens while the model runs."


def check_online(calibrated: Calibrated | None, target: Target) -> None:
    """Raise UserError where a target's files can not say so."""
    if calibrated is not None and calibrated.online and (why := why_no_online(target)):
        raise UserError(why, HINT)


def online_matrix(config: DecoderConfig, tensors: Sequence[MappedTensor]) -> tuple[MappedTensor, Format]:
    """H as a tensor beside the first down projection, ±1, and the format that stores it. Raises UserError for a model
    whose inputs can not be rotated so."""
    from core.methods.rotation import run_of, why_not_online

    downs = [t for t in tensors if t.role is Role.FFN_DOWN and t.layer is not None and t.name.endswith(".weight")]
    why = why_not_online(config)
    if any(len(t.shape) != 2 for t in downs):
        why = "its experts are stored as one tensor, of which no loader rotates the inputs"
    if why or not downs:
        raise UserError(f"Rotation while the model runs does not fit this model: {why or 'it has none'}.", HINT)
    run = run_of(config)
    name = f"{module(downs[0].name)}.{ONLINE_GROUP}_input.weight"
    values = sylvester(run)
    return MappedTensor(name, (run, run), (), values=values, layer=downs[0].layer), find_format("BF16", "safetensors")


def online_note(experts: bool) -> str:
    """Who runs such a file, and who does not."""
    if experts:
        return (
            "What comes into each expert's down projection is rotated while the model runs, which Bitsmith does. vLLM "
            "and transformers do not, for experts, and would write nonsense: this file runs here only."
        )
    return (
        "What comes into the down projections is rotated while the model runs: Bitsmith and vLLM (on one GPU) do so. "
        "transformers 5 does not yet, and would write nonsense from this file."
    )
