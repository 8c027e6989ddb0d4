"""Which of several planned formats is the best for a device, and why, for somebody who knows none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core import units
from core.hardware.matrix import State, cell
from core.hardware.words import instruction_words
from core.plan import FALLBACK_WARNING

if TYPE_CHECKING:
    from app.devices import DeviceChoice
    from app.jobs.plan_presets import Offer

ROOMY = 0.25  # of the device's memory: a model that takes less in 8 bits has room for them
HALF = 0.5  # the same for fewer bits: the rest is for other programs and longer texts
READING_SPEED = 15.0  # tokens/s: two to three times as fast as a person reads
READERS = "llama.cpp, LM Studio and Ollama"  # of GGUF, which all of the presets are


def best_of(ladder: Sequence[Offer], device: str, quantized: bool) -> tuple[Offer, str]:
    """The best Offer and the reason. ladder: of which those without a plan, and poor fits of blocks, do not count.

    Of those that fit the device and are smaller than the source: the closest to the original that leaves room in
    memory and answers quickly, but nothing below Balanced for speed alone; where Balanced does not fit, the largest
    that does. From a quantized source the one that loses least: the largest that is smaller.
    """
    planned = [o for o in ladder if o.plan is not None]
    if not planned:
        return ladder[0], ""
    sound = [o for o in planned if o.plan is not None and o.plan.fallback_share <= FALLBACK_WARNING] or planned
    sound.sort(key=_bytes, reverse=True)
    useful = [o for o in sound if o.plan is not None and o.plan.change < 0] or sound[-1:]
    fitting = [o for o in useful if o.fits is not False]
    if not fitting:
        return useful[-1], f"nothing fits on {device} with this context; this is the smallest"
    if quantized:
        return fitting[0], "the model is already quantized; of the sizes below its own, this loses least"
    balanced = next((o for o in fitting if o.preset.key == "balanced"), None)
    if balanced is None:
        return fitting[0], "the closest to the original that fits"
    for offer in fitting[: fitting.index(balanced)]:
        if not _why_not(offer):
            if offer.preset.key == "closest":
                return offer, "there is room and speed enough for 8 bits, so nothing needs to be given up"
            return offer, f"the closest to the original here: {_passed_over(useful, offer)}"
    passed = _passed_over(useful, balanced)
    return balanced, "the best quality for its size that suits this device" + (f"; {passed}" if passed else "")


def runtime_sentence(target: str, device: DeviceChoice | None) -> str:
    """Which programs run it there, and how well."""
    known = device.device if device is not None else None
    state = cell(target, "llama.cpp", known.hardware_class).state if known is not None else State.UNKNOWN
    if state is State.NATIVE and known is not None:
        words = instruction_words(known.instruction_sets)
        suited = f", which works on {words}" if words and known.kind == "cpu" else ""
        return f"{READERS} run it, with fast code for {known.name}{suited}."
    if state is State.EMULATED:
        return f"{READERS} run it, unpacking weights on the way."
    return f"{READERS} run it."


def _bytes(offer: Offer) -> int:
    return offer.plan.bytes_total if offer.plan is not None else 0


def _why_not(offer: Offer) -> str:
    """Why an offer is passed over for a smaller one; '' when nothing speaks against it."""
    share = ROOMY if offer.preset.key == "closest" else HALF
    if offer.fits is False:
        return "would not fit"
    if offer.capacity is not None and offer.used > share * offer.capacity:
        return f"would take over {units.format_percent(share, 0)} of the memory"
    if offer.tokens_per_second is not None and offer.tokens_per_second < READING_SPEED:
        return f"would write at most {units.format_tokens_per_second(offer.tokens_per_second)}"
    return ""


def _passed_over(useful: Sequence[Offer], chosen: Offer) -> str:
    """What speaks against the next larger one: 'Q8_0 would not fit'."""
    larger = useful[: useful.index(chosen)]
    return f"{larger[-1].recipe.target} {_why_not(larger[-1])}" if larger and _why_not(larger[-1]) else ""
