"""llama.cpp computes with our GGUF what transformers computes with the folder, for every architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from interop.llama import Llama

from core.checkpoint import open_checkpoint
from core.export.gguf import gguf_layout
from core.export.gguf_values import FILE_TYPES
from core.models import gguf_metadata, map_tensors, read_mapped

pytestmark = pytest.mark.interop

# Below the window of 64 tokens of the models that have one: llama.cpp gives Mistral and Phi-3 none.
# CONTEXT is not longer than Phi-3's original context: llama.cpp would choose the factors for long texts by it.
CONTEXT = 256
PROMPT = "The fox, number 345, reads naïve words."
# Largest |Δ log-probability| over the whole vocabulary, in nats; llama.cpp keeps keys and values in F16.
# A head rotated in the wrong order is off by 0.05 and more.
BUDGET = 5e-3


def write_f32(folder: Path, output: Path, block: int = 50) -> None:
    """The model with every tensor in F32, written in row blocks as a run writes it."""
    with open_checkpoint(folder) as checkpoint:
        tensors = map_tensors(checkpoint)
        entries = [(t.name, t.shape, "F32", 4 * int(np.prod(t.shape))) for t in tensors]
        layout = gguf_layout(entries, gguf_metadata(checkpoint, FILE_TYPES["F32"], tensors))
        with output.open("wb") as file:
            file.write(layout.files[0].header)
            file.truncate(layout.total_bytes)
            for part in layout.parts:
                file.seek(part.offset)
                mapped = tensors[part.tensor]
                for start in range(0, mapped.rows, block):
                    file.write(read_mapped(checkpoint, mapped, start, start + block).tobytes())
                assert file.tell() == part.offset + part.nbytes


def token_ids(folder: Path) -> list[int]:
    """The prompt's tokens by the source's own tokenizer library."""
    if (folder / "tokenizer.model").exists():
        import sentencepiece

        return [1, *sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode(PROMPT)]
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT).ids


def logprobs(path: Path, forced: int) -> dict[int, float]:
    """llama.cpp's log-probability of every token after the prompt, before sampling.

    forced: the token that is then sampled: the server reports nothing for an end of text or half a character.
    """
    answer = Llama(path, context=CONTEXT)._ask(PROMPT, 1, n_probs=512, logit_bias=[[forced, 1000.0]])
    (first,) = answer["logprobs"]["content"]
    assert first["id"] == forced
    return {entry["id"]: entry["logprob"] for entry in first["top_logprobs"]}


def reference(folder: Path, ids: list[int]) -> np.ndarray:
    import transformers

    images = "gemma3-images" in folder.name
    loader = transformers.AutoModelForImageTextToText if images else transformers.AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1).numpy()


@pytest.mark.parametrize(
    "name",
    [
        *("llama2", "llama3", "mistral", "mixtral", "qwen2", "qwen3", "qwen3moe"),
        *("gemma2", "gemma3", "gemma3-images", "phi3", "phi3-long"),
    ],
)
def test_next_token_probabilities(name: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny(name)
    write_f32(folder, tmp_path / "model.gguf")
    ids = token_ids(folder)
    assert len(ids) < 64
    want = reference(folder, ids)
    got = logprobs(tmp_path / "model.gguf", next(i for i in ids[::-1] if i > 260))
    worst = max(abs(want[token] - value) for token, value in got.items())
    print(f"{name}: {len(ids)} tokens, largest |Δ log p| {worst:.1e} nats")
    assert len(got) == 512
    assert worst < BUDGET
