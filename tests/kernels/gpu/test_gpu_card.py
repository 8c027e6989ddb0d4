"""On a card that is here: every self-test, and encoders through the public operations, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, families, ops
from kernels.gpu import selftest

pytestmark = pytest.mark.gpu


def test_every_kernel_agrees_with_the_reference() -> None:
    assert not [found for found in selftest.survey() if found.reason]


def test_large_blocks_are_encoded_on_the_card_with_the_same_bits() -> None:
    x = np.random.default_rng(1).standard_normal((1024, 4096)).astype(np.float32)
    scales = np.maximum(families.tile_amax(x, 128, 128) / np.float32(448), np.float32(1e-30))
    for start in (
        lambda: ops.encode_groups(x, 4, 128, False, search=False),
        lambda: ops.encode_blocks("Q4_0", x, search=False),
        lambda: ops.encode_blocks("NVFP4", x, search=False, tensor_scale=0.01),
        lambda: families.encode_float8(x, "F8_E4M3", scales, 128, 128),
    ):
        with dispatch.tally() as tally:
            found = start()
        assert tally.values == {"gpu:triton": x.size}, tally.declined
        with dispatch.only("cpu" if dispatch.backends()[0].startswith("cpu") else "reference"):
            expected = start()
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        assert all(np.array_equal(a, b) for a, b in pairs)
