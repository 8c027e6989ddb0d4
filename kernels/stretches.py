"""Stretches of a file at equal distances, such as the words of some rows in a transposed matrix.

The compiled functions make the system calls without the interpreter between them; elsewhere the caller makes them.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu

available = cpu.extension is not None and hasattr(cpu.extension, "write_stretches")


def write(file: int, offset: int, stride: int, rows: np.ndarray) -> int:
    """Write row i of uint8 [n, bytes], contiguous, at offset + i · stride of a descriptor; returns the bytes written.

    Safe from any thread; only where `available`. Raises OSError as os.pwrite does.
    """
    return int(cpu.extension.write_stretches(file, offset, stride, rows))  # type: ignore[union-attr]


def read(file: int, offset: int, stride: int, rows: np.ndarray) -> int:
    """Fill row i of uint8 [n, bytes], contiguous, from offset + i · stride; returns the bytes read."""
    return int(cpu.extension.read_stretches(file, offset, stride, rows))  # type: ignore[union-attr]
