"""What a run was encoded on, in sentences of its report: only where a GPU had a part in it, or should have had."""

from __future__ import annotations

from core.units import format_count
from kernels import gpu
from kernels.dispatch import Tally
from kernels.gpu.backends import conversion


def encoded_on(tally: Tally) -> tuple[str, ...]:
    """Sentences; none where everything was encoded by the processor, as it has to be without a GPU."""
    own = {name: count for name, count in tally.values.items() if name.startswith("gpu")}
    others = tally.values.total() - sum(own.values())
    said = []
    if own:
        card = gpu.state().name or gpu.state().card or "the GPU"
        rest = f", {format_count(others)} on the processor" if others else ""
        said.append(f"Encoded on {card}: {format_count(sum(own.values()))} values{rest}.")
    for (_, why), count in sorted(tally.declined.items()):
        blocks = "1 block" if count == 1 else f"{format_count(count)} blocks"
        said.append(f"The GPU left {blocks} to the processor: {why}.")
    if others:
        said += [f"The GPU's '{kernel}' is switched off: {why}." for kernel, why in conversion.switched_off()]
    return tuple(said)
