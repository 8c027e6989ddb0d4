"""The linear layers of a program, and matrices of the same shapes and formats to measure with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from core.runtime.reading import PROCESSOR, Matrices
from kernels import ops
from kernels.layouts import BLOCK_KINDS, LAYOUTS, PLAIN_KINDS
from kernels.matrix import Matrix
from kernels.program import Embed, Experts, Linear, Program

SQUARE = 4096  # rows and columns of the layer that all models are compared on
_TILE = 16  # rows of random weights that are repeated: their values do not matter, only that they are no zeros
_SEED = 5


def step_matrices(program: Program) -> Iterator[tuple[Matrix, int]]:
    """Every matrix that a token is multiplied with, and how many of its like: of equal experts, those that are used."""
    for part in program.steps:
        if isinstance(part, Linear):
            yield from ((matrix, 1) for matrix in part.weights)
        elif isinstance(part, Experts):
            yield from ((group[0], part.used) for group in (part.gates, part.ups, part.downs) if group)


def embedding_rows(program: Program) -> int | None:
    """How many tokens the model knows; None for a program without an embedding."""
    return next((part.weight.rows for part in program.steps if isinstance(part, Embed)), None)


def decode_flops(program: Program) -> float:
    """Operations of one token's products; attention is left out, which adds little at contexts of some hundreds."""
    return sum(2.0 * matrix.rows * matrix.columns * count for matrix, count in step_matrices(program))


def layer_shapes(program: Program) -> list[Matrix]:
    """One matrix for each shape and format, those first of which a step reads the most."""
    read: Counter[tuple[int, int, str]] = Counter()
    first: dict[tuple[int, int, str], Matrix] = {}
    for matrix, count in step_matrices(program):
        key = (matrix.rows, matrix.columns, matrix.format)
        read[key] += matrix.nbytes * count
        first.setdefault(key, matrix)
    return [first[key] for key, _ in read.most_common()]


def main_format(program: Program) -> str:
    """The format that most of a step's bytes are in."""
    read: Counter[str] = Counter()
    for matrix, count in step_matrices(program):
        read[matrix.format] += matrix.nbytes * count
    return read.most_common(1)[0][0] if read else "BF16"


def sample_matrix(format_name: str, rows: int, columns: int, matrices: Matrices = PROCESSOR) -> Matrix:
    """Random weights of that shape in a format as `Matrix.format` names it. Raises ValueError when it has none such.

    matrices: what packs them, for the processor or a GPU.
    """
    tile = np.random.default_rng(_SEED).standard_normal((_TILE, columns), dtype=np.float32) * np.float32(0.02)
    if format_name in BLOCK_KINDS and format_name not in PLAIN_KINDS and columns % LAYOUTS[format_name].block == 0:
        blocks = ops.encode_blocks(format_name, tile, search=False)
        return matrices.from_blocks(format_name, rows, columns, lambda start, stop: _repeated(blocks, start, stop))
    if format_name in PLAIN_KINDS:
        raw = ops.from_float32(tile, format_name)
        raw = np.ascontiguousarray(raw).view(np.uint8).reshape(_TILE, -1)
        return matrices.from_elements(format_name, rows, columns, lambda start, stop: _repeated(raw, start, stop))
    kind, _, group_name = format_name.partition(" ")
    if kind.startswith("int") and kind[3:].isdigit():
        group = columns if group_name == "per row" else int(group_name.removeprefix("g"))
        codes, scales, _ = ops.encode_groups(tile, int(kind[3:]), group, symmetric=True, search=False)
        return matrices.from_groups(
            rows,
            columns,
            int(kind[3:]),
            group,
            lambda start, stop: (_repeated(codes, start, stop), _repeated(scales, start, stop), None),
            scale_dtype="F16",
        )
    raise ValueError(f"no random weights in {format_name}")


def _repeated(tile: np.ndarray, start: int, stop: int) -> np.ndarray:
    return np.ascontiguousarray(tile[np.arange(start, stop) % _TILE])
