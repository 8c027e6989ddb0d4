"""Products of a calibration's pass with codes that were just chosen: activations become int8 where that hardly shows.

Integers multiply twice as fast as bfloat16 and more. What they round away of an input is small beside what few bits
have changed already, which the pass carries on anyway; where it is not, for 8-bit weights or an outlier that hides the
values beside it, the pass goes on in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from core.formats.numbers import Codes, Numbers
from core.methods.looks import product_energy
from core.progress import CancelToken
from core.runtime.packed import grouped_matrix
from kernels import matrix
from kernels.matrix import Matrix

_TOKENS = 64  # that are looked at
_SHARE = 0.4  # of the change by the codes that rounding inputs may add, root mean square


class Sample:
    """Some tokens of an input of so many rows, evenly over all, taken as its pieces go by."""

    def __init__(self, rows: int) -> None:
        self._step = max(1, -(-rows // _TOKENS))
        self._kept: list[np.ndarray] = []

    def of(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """The pieces, float32 [R, K], as they are."""
        seen = 0
        for x in pieces:
            self._kept.append(x[-seen % self._step :: self._step].copy())
            seen += len(x)
            yield x

    def rows(self) -> np.ndarray | None:
        """float32 [R, K]; None where nothing came."""
        return np.concatenate(self._kept) if any(map(len, self._kept)) else None


def coded_matrix(
    numbers: Numbers, codes: Codes, weight: np.ndarray, values: np.ndarray, x: np.ndarray | None, token: CancelToken
) -> Matrix | None:
    """Codes that stand for `values`, float32 [N, K], as a matrix whose products round activations to int8.

    None where there is no such matrix, or where that rounding changes the output of the tokens x, float32 [R, K], by
    more than a share of what the codes have changed it by. weight: what they were chosen for. Raises Cancelled.
    """
    if x is None:
        return None

    def read(start: int, stop: int) -> Codes:
        token.check()
        return codes.rows(start, stop)

    try:
        found = grouped_matrix(numbers, values.shape[0], values.shape[1], read)
    except ValueError:  # the engine has no layout for these
        return None
    if found.stored.kind != "integer":
        return None
    exact = x @ values.T
    noise = matrix.product(x, found) - exact
    change = product_energy(x, weight, token, exact)
    return found if float(np.vdot(noise, noise)) <= _SHARE**2 * change else None
