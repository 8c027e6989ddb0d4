"""Rotary frequencies against those of transformers, for every kind of scaling and its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decoder_models import LLAMA3, LONGROPE, SIZES, YARN

from core.errors import UserError
from core.models.config import DecoderConfig, read_config
from core.runtime.rope import rope_frequencies

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e5, "factor": 2.5},
    "llama3": LLAMA3,
    "llama3-wide": {**LLAMA3, "low_freq_factor": 0.5, "high_freq_factor": 16.0},
    "yarn": YARN,
    "yarn-betas": {**YARN, "beta_fast": 16, "beta_slow": 2},
    "yarn-scales": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-attention": {**YARN, "attention_factor": 0.9},
    "yarn-straight": {**YARN, "truncate": False},
    "longrope": LONGROPE,
    "longrope-attention": {**LONGROPE, "attention_factor": 1.25},
    "dynamic": DYNAMIC,
}


def configured(rope: dict[str, Any], **more: Any) -> DecoderConfig:
    fields = {**SIZES, "model_type": "llama", "rope_parameters": rope, **more}
    config = read_config(fields)
    assert config is not None
    return config


@pytest.mark.parametrize("name", CASES)
def test_as_transformers_has_them(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = CASES[name]
    theirs = LlamaConfig(**SIZES, rope_parameters=dict(rope))
    # longrope: one more than the original context; dynamic: twice the model's.
    length = {"longrope": 33, "dynamic": 512}.get(rope["rope_type"], 256)
    want, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs, "cpu", seq_len=length)
    got, our_scale = rope_frequencies(configured(rope), length)
    np.testing.assert_allclose(got, want.numpy(), rtol=2e-6)
    assert our_scale == pytest.approx(scale, rel=1e-6)


def test_long_and_short_factors() -> None:
    config = configured(LONGROPE)
    plain = 10000.0 ** -(np.arange(8) / 8)
    for capacity, factors in ((32, "short_factor"), (33, "long_factor")):
        np.testing.assert_allclose(rope_frequencies(config, capacity)[0], plain / LONGROPE[factors], rtol=1e-6)


def test_dynamic_changes_nothing_within_the_context() -> None:
    config = configured(DYNAMIC)
    np.testing.assert_allclose(rope_frequencies(config, 256)[0], 10000.0 ** -(np.arange(8) / 8), rtol=1e-6)
    assert rope_frequencies(config, 300)[0][-1] < 0.99 * 10000.0 ** -(7 / 8)


def test_part_of_a_head() -> None:
    half = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    whole = 10000.0 ** -(np.arange(8) / 8)
    np.testing.assert_allclose(rope_frequencies(configured(half), 10)[0], whole, rtol=1e-6)  # Llama's class heeds none
    config = configured(half, model_type="phi3")
    np.testing.assert_allclose(rope_frequencies(config, 10)[0], 10000.0 ** -(np.arange(4) / 4), rtol=1e-6)


def test_sliding_layers_have_a_base_of_their_own() -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = configured(rope, model_type="gemma3_text", head_dim=16)
    np.testing.assert_allclose(rope_frequencies(config, 10)[0], 1e6 ** -(np.arange(8) / 8) / 8, rtol=1e-6)
    np.testing.assert_allclose(rope_frequencies(config, 10, local=True)[0], 1e4 ** -(np.arange(8) / 8), rtol=1e-6)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match="'spiral'"):
        rope_frequencies(configured({"rope_type": "spiral"}), 10)
    with pytest.raises(UserError, match=r"3 rope factors, where each head has 8 pairs"):
        rope_frequencies(configured({**LONGROPE, "long_factor": [1.0] * 3}), 64)
