"""Who reads a buffer of a program after a step, until it is written again: its type follows from that."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.program import ActMul, Add, Attention, Embed, Experts, Linear, Norm, Program, Rope, SoftCap, Split, Step


def reads(step: Step) -> tuple[int, ...]:
    """Buffers that a step reads."""
    match step:
        case Embed():
            return ()
        case Norm() | Split() | Rope() | SoftCap():
            return (step.x,)
        case Linear():
            return (step.x, *(step.outs if step.accumulate else ()))
        case Attention():
            return step.q, step.k, step.v
        case ActMul():
            return step.gate, step.up
        case Add():
            return step.x, step.out
        case Experts():
            return step.x, step.logits, step.out


def writes(step: Step) -> tuple[int, ...]:
    """Buffers that a step writes."""
    match step:
        case Linear() | Split():
            return step.outs
        case Rope() | SoftCap():
            return (step.x,)
        case _:
            return (step.out,)


def readers(program: Program, number: int, buffer: int) -> Iterator[Step]:
    """Steps after step `number` that read what it has left in the buffer."""
    for step in program.steps[number + 1 :]:
        if buffer in reads(step):
            yield step
        if buffer in writes(step):
            return


def meets_products(program: Program, number: int, buffer: int) -> bool:
    """Whether all that follows is products."""
    if buffer == program.logits:
        return False
    found = list(readers(program, number, buffer))
    return bool(found) and all(
        isinstance(step, Linear | Experts) and step.x == buffer and buffer not in reads(step)[1:] for step in found
    )


def read_by_attention(program: Program, number: int, buffer: int) -> bool:
    """Whether all that follows is attention, as queries or keys."""
    found = list(readers(program, number, buffer))
    return bool(found) and all(isinstance(step, Attention) and buffer != step.v for step in found)


def key_of_attention(program: Program, number: int, buffer: int) -> bool:
    """Whether attention reads it as keys."""
    return any(isinstance(step, Attention) and buffer == step.k for step in readers(program, number, buffer))
