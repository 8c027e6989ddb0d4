"""What calibration will do and cost, before anything runs: which weights, how long, how much memory and disk."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from core.assign import FLOAT_DTYPES
from core.checkpoint.base import Checkpoint, Container
from core.errors import UserError
from core.methods.choice import Calibrated, DataMethod
from core.methods.prepare import chooses, steps_of_choice, why_not_choose
from core.methods.view import CalibratedCheckpoint, untied_head
from core.models.config import DecoderConfig
from core.plan import Action, Plan, TensorPlan
from core.runtime.decoder import FAMILIES
from core.runtime.load import decoder_config
from core.runtime.weights import plan_weights
from core.threads import worker_count

CORE_FLOPS = 1e11  # float operations a second of one core of a 2023 desktop, products in bfloat16
ELEMENTWISE_SECONDS = 2e-9  # of one core, for each value that steps between products touch
LEARNING_PASSES = 4  # a pass with gradients is some three, and outputs are computed before and after
_CODE_BYTES = 1.3  # of a value: its code, and its share of the group's scale and zero
BASE_MEMORY = 600_000_000  # the program with torch


def check_can_calibrate(checkpoint: Checkpoint, calibrated: Calibrated) -> DecoderConfig:
    """The decoder's configuration. Raises UserError for a model that no text can be sent through."""
    if checkpoint.architecture in ("", *FAMILIES):
        config = decoder_config(checkpoint)
        if config.architecture in FAMILIES:
            return config
    raise UserError(
        f"{calibrated.name} runs the model, and those of the kind '{checkpoint.architecture or 'unknown'}' can not be "
        "run here.",
        f"Choose a method without data; the kinds that can be run are {', '.join(FAMILIES)}.",
    )


def forecast(plan: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan with what its recipe's calibration adds: how each weight's numbers are chosen, time, memory, room on the
    disk, warnings. Raises UserError where the model, a transform or the formats make it impossible."""
    calibrated = plan.recipe.calibrated
    if calibrated is None:
        return plan
    config = check_can_calibrate(checkpoint, calibrated)
    steps = steps_of_choice(calibrated)
    for name, transform in zip(calibrated.transforms, steps.transforms, strict=True):
        if why := transform.why_not(config):
            raise UserError(f"{name.label} does not fit this model: {why}.", "Leave it out of the recipe.")
    reached = {
        slot.stored.name
        for slot in plan_weights(checkpoint, config).slots
        if slot.name.startswith("blk.") or (slot.name == "output.weight" and not calibrated.needs_blocks)
    }
    tensors = tuple(_chosen(t, calibrated, reached) for t in plan.tensors)
    chosen = [t for t in tensors if t.chosen_by]
    quantized = [t for t in plan.tensors if t.action is Action.QUANTIZE]
    if not quantized:
        raise UserError(
            f"{_why_nothing(plan)}, so there is nothing for {calibrated.name} to choose.",
            "Leave the calibration out, or choose another format.",
        )
    if calibrated.method is not DataMethod.NONE and not chosen:
        raise _nothing_chosen(calibrated, quantized)
    seconds = _seconds(config, calibrated, chosen)
    rest = len(quantized) - len(chosen)
    notes = [note for t in steps.transforms if (note := t.note(config))]
    if any(t.unties(config) for t in steps.transforms) and plan.tensors and config.tied:
        notes.append(
            "The embedding was the output head, too; rotated, the two differ, so the output has a head of its own."
        )
    if calibrated.chooser is not DataMethod.NONE and rest:
        others = sorted({t.format_name for t in tensors if t.action is Action.QUANTIZE and not t.chosen_by})
        notes.append(
            f"{rest} of {len(quantized)} tensors are chosen without data, since {_by_whom(calibrated)} has nothing to "
            f"say of {', '.join(others)} or of tensors outside the decoder's blocks."
        )
    return replace(
        plan,
        tensors=tensors,
        expected_seconds=plan.expected_seconds + seconds,
        choosing_seconds=seconds,
        expected_memory=max(plan.expected_memory, _memory(config, calibrated)),
        scratch_bytes=plan.scratch_bytes + _scratch(config, calibrated, chosen, plan.tensors, reached),
        warnings=(*plan.warnings, *notes),
    )


def _why_nothing(plan: Plan) -> str:
    """Why no tensor is quantized."""
    moved = sorted({t.format_name for t in plan.tensors if t.source_dtype not in FLOAT_DTYPES})
    if not moved:
        return "Nothing is quantized here"
    return f"The source has the numbers of {', '.join(moved)} already, which move as they are"


def _by_whom(calibrated: Calibrated) -> str:
    return calibrated.name if calibrated.method is not DataMethod.NONE else "AWQ's clipping"


def _nothing_chosen(calibrated: Calibrated, quantized: Sequence[TensorPlan]) -> UserError:
    """Why, where a format is the reason."""
    names = ", ".join(sorted({t.format_name for t in quantized}))
    reasons = {why_not_choose(calibrated.method, t.format) for t in quantized if t.format is not None} - {""}
    why = f": {min(reasons)}" if reasons else ", which are all outside of the decoder's blocks"
    return UserError(
        f"{calibrated.name} can not choose the numbers of {names}{why}.",
        "Choose 'importance' for K-quants and IQ4, or a format of plain groups such as Q4_0 or w4a16-g64.",
    )


def _chosen(t: TensorPlan, calibrated: Calibrated, reached: Collection[str]) -> TensorPlan:
    """Marks what the method chooses. reached: the source's tensors that the text goes through."""
    if t.action is not Action.QUANTIZE or t.format is None or not chooses(calibrated.chooser, t.format):
        return t
    return replace(t, chosen_by=calibrated.name) if all(s.name in reached for s in t.source.sources) else t


def _rows(calibrated: Calibrated) -> int:
    return calibrated.text.tokens


def _seconds(config: DecoderConfig, calibrated: Calibrated, chosen: Sequence[TensorPlan]) -> float:
    """Wall time on this machine's cores, roughly. chosen: the weights whose numbers are chosen."""
    if calibrated.imatrix:
        return 0.0
    tokens = _rows(calibrated)
    steps = steps_of_choice(calibrated)
    looked = steps.statistics_tokens(config)
    passes = 1.0 + steps.follows_full + (tokens if looked is None else min(looked, tokens)) / max(tokens, 1)
    if steps.learner is not None:
        passes += LEARNING_PASSES
    core_seconds = passes * tokens * layer_flops(config) * config.layers / CORE_FLOPS
    if steps.solver is not None:
        sums = 4 if steps.follows_full else 1  # of the inputs, of half of them, and of what they should be
        core_seconds += sums * tokens * _gram_flops(config) * config.layers / CORE_FLOPS
        core_seconds += sum(prod(t.shape[:-2]) * steps.solver.seconds_for(*t.shape[-2:]) for t in chosen)
    core_seconds += sum(t.seconds_for(config, tokens) for t in steps.transforms)
    return core_seconds / worker_count()


def layer_flops(config: DecoderConfig) -> float:
    """Float operations of one token in one block; with experts, of those that it is sent to."""
    width, heads = config.hidden, config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    inner = config.expert_intermediate * config.experts_used if config.experts else config.intermediate
    return 2.0 * width * (heads + 3 * inner)


def _gram_flops(config: DecoderConfig) -> float:
    """Of the Gram matrices of one block's inputs, for one token; half of each is computed."""
    inner = config.expert_intermediate if config.experts else config.intermediate
    share = config.experts_used if config.experts else 1
    return float((2 + share * bool(config.experts)) * config.hidden**2 + config.heads**2 * config.head_dim**2) + (
        share * inner**2
    )


def block_bytes(config: DecoderConfig) -> int:
    """float32 bytes of the largest block."""
    heads = config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    inner = config.expert_intermediate * config.experts if config.experts else config.intermediate
    return 4 * config.hidden * (heads + 3 * inner)


def _memory(config: DecoderConfig, calibrated: Calibrated) -> int:
    """Three times the largest block, what the tokens are at its widest place, and the program."""
    inner = config.expert_intermediate if config.experts else config.intermediate
    width = max(inner, config.heads * config.head_dim) + 2 * config.hidden
    return 3 * block_bytes(config) + 4 * _rows(calibrated) * width + BASE_MEMORY


def _scratch(
    config: DecoderConfig,
    calibrated: Calibrated,
    chosen: Sequence[TensorPlan],
    tensors: Sequence[TensorPlan],
    reached: Collection[str],
) -> int:
    """Codes and scales of chosen weights, float32 of transformed ones, and the tokens between two blocks, of which an
    older copy stays until the newer one is whole. reached: the source's tensors that the text goes through."""
    if not calibrated.needs_blocks:
        return 0
    steps = steps_of_choice(calibrated)
    solved = chosen if steps.chooser is not None else ()
    floats = [t for t in tensors if calibrated.transforms and len(t.shape) > 1]
    if not any(t.unties(config) for t in steps.transforms):  # nor is anything outside of the blocks changed
        floats = [t for t in floats if any(s.name in reached for s in t.source.sources)]
    streams = 2 * (1 + steps.follows_full)
    codes = sum(round(t.values * _CODE_BYTES) for t in solved)
    return codes + 4 * sum(t.values for t in floats) + streams * 4 * _rows(calibrated) * config.hidden


_ANNOUNCED: weakref.WeakKeyDictionary[Checkpoint, Checkpoint] = weakref.WeakKeyDictionary()


def announced(checkpoint: Checkpoint, calibrated: Calibrated) -> Checkpoint:
    """The source with the tensors that it will have: a transform may need a head beside the embedding, which was both.

    Its values are the embedding's until they are computed. Raises UserError for a model that can not be run.
    """
    config = check_can_calibrate(checkpoint, calibrated)
    slots = plan_weights(checkpoint, config).slots if calibrated.transforms else ()
    if not slots or any(s.name == "output.weight" for s in slots):
        return checkpoint
    if not any(t.unties(config) for t in steps_of_choice(calibrated).transforms):
        return checkpoint
    if checkpoint not in _ANNOUNCED:
        embedding = next(s.stored.name for s in slots if s.name == "token_embd.weight")
        head = untied_head(checkpoint.tensor(embedding), checkpoint.container is Container.GGUF)
        _ANNOUNCED[checkpoint] = CalibratedCheckpoint(checkpoint, {}, {}, [head])
    return _ANNOUNCED[checkpoint]
