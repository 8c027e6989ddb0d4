"""How long a calibrated run works without a look at its token: a block of a width at which nothing whole is short."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cancel_help import Looks, most_work
from decoder_models import tokenizer_files
from safetensors.numpy import save_file

from core.budget.sensitivity import sensitivities
from core.budget.wish import Wish
from core.calibration.loading import torch_ready
from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.errors import Cancelled
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.scratch import scratch_path
from core.output import RESERVE
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.threads import aside

WIDTH, INNER, HEADS = 1536, 4096, 12
TEXT = CalibrationText(samples=2, length=256)
NONE = DataMethod.NONE
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "importance": ("Q4_K_M", {"method": DataMethod.IMPORTANCE}),
    "clipping": ("w4a16-g64-asym", {"method": DataMethod.CLIPPING}),
    "gptq": ("w4a16-g64", {"method": DataMethod.GPTQ}),
    "gptq aiming": ("w4a16-g64", {"method": DataMethod.GPTQ, "aim": True}),
    "learned": ("w4a16-g64", {"method": DataMethod.LEARNED}),
    "AWQ": ("w4a16-g64-asym", {"method": NONE, "transforms": (Transform.AWQ,)}),
    "SmoothQuant": ("w8a8", {"method": NONE, "transforms": (Transform.SMOOTHQUANT,)}),
    "rotation": ("Q4_0", {"method": NONE, "transforms": (Transform.ROTATION,)}),
    "rotation and importance": ("Q4_K_M", {"method": DataMethod.IMPORTANCE, "transforms": (Transform.ROTATION,)}),
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (320, WIDTH),
        layer + "self_attn.q_proj.weight": (WIDTH, WIDTH),
        layer + "self_attn.k_proj.weight": (WIDTH // 4, WIDTH),
        layer + "self_attn.v_proj.weight": (WIDTH // 4, WIDTH),
        layer + "self_attn.o_proj.weight": (WIDTH, WIDTH),
        layer + "mlp.gate_proj.weight": (INNER, WIDTH),
        layer + "mlp.up_proj.weight": (INNER, WIDTH),
        layer + "mlp.down_proj.weight": (WIDTH, INNER),
    }
    arrays = {n: rng.standard_normal(s, np.float32) * np.float32(0.02) for n, s in shapes.items()}
    gains = ("model.norm.weight", layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight")
    save_file(arrays | {n: np.ones(WIDTH, np.float32) for n in gains}, folder / "model.safetensors", {"format": "pt"})
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "vocab_size": 320,
        "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS, "hidden_act": "silu",
        "num_key_value_heads": HEADS // 4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer_files(folder)
    return folder


def finish(job: Generator[Any, None, Any]) -> None:
    for _ in job:
        pass


def counted(work: Callable[[CancelToken], None]) -> Looks:
    torch_ready(CancelToken())  # an import is waited for, and not worked between looks
    looks = Looks()
    work(looks)
    looks.check()
    return looks


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_runs_look_often(name: str, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target, fields = RUNS[name]
    output = tmp_path / ("out.gguf" if target.startswith("Q") else "out")
    with open_checkpoint(wide) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target, calibrated=Calibrated(text=TEXT, **fields)))
        work, taken = scratch_path(output), [0]

        def watched(token: CancelToken) -> None:
            for _ in run(plan, checkpoint, output, token):
                files = list(work.iterdir()) if work.is_dir() else []
                taken.append(sum(f.stat().st_size for f in files))

        looks = counted(watched)
    assert max(taken) <= plan.scratch_bytes - RESERVE
    assert max(taken) > 0.4 * (plan.scratch_bytes - RESERVE) or not plan.recipe.calibrated.needs_blocks
    assert looks.count > 100
    assert looks.longest < most_work(), looks.where


@pytest.mark.slow
def test_budgets_look_often(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wish = Wish(calibrated=Calibrated(DataMethod.IMPORTANCE, text=TEXT), probe=CalibrationText(samples=2, length=64))
    with open_checkpoint(wide) as checkpoint:
        looks = counted(lambda token: finish(sensitivities(checkpoint, wish, token)))
    assert looks.longest < most_work(), looks.where


def test_what_can_not_be_stopped_is_not_waited_for() -> None:
    import threading

    token, begun, let_go = CancelToken(), threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        let_go.wait(60)

    threading.Thread(target=lambda: (begun.wait(60), token.cancel())).start()
    with pytest.raises(Cancelled):
        aside(job, token)
    assert not let_go.is_set()
    let_go.set()
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0, CancelToken())
    assert aside(lambda: 7, CancelToken()) == 7
