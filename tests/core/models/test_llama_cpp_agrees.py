"""llama.cpp computes with our GGUF what transformers computes with the folder, for every architecture."""

from __future__ import annotations

import shutil
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
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# name → expressions of Split steps, and whether each digit is then alone. Where words end shows in what is merged.
SPLITTERS: dict[str, tuple[list[str], bool]] = {
    "gpt-2": ([r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"], False),
    "dbrx": (
        [
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
                r"\s*[\r\n]|\s+(?!\S)|\s+"
            )
        ],
        False,
    ),
    "deepseek-coder": (["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK], True),
    "deepseek-v3": (
        [
            r"\p{N}{1,3}",
            KANA,
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES,
        ],
        False,
    ),
    "viking": ([" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"], True),
}
HARD_TEXT = (
    "The fox, 1234567 naïve\n\n\tdef f(a):\n    return a+1 # 中文字符가나 ひらがな X'LL don't…!?\r\n  the end 42 river"
)
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


def token_ids(folder: Path, text: str = PROMPT) -> list[int]:
    """The prompt's tokens by the source's own tokenizer library."""
    if (folder / "tokenizer.model").exists():
        import sentencepiece

        return [1, *sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode(text)]
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


def logprobs(path: Path, forced: int, text: str = PROMPT) -> dict[int, float]:
    """llama.cpp's log-probability of every token after the prompt, before sampling.

    forced: the token that is then sampled: the server reports nothing for an end of text or half a character.
    """
    answer = Llama(path, context=CONTEXT)._ask(text, 1, n_probs=512, logit_bias=[[forced, 1000.0]])
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
        *("llama2", "llama3", "mistral", "mixtral", "qwen2", "qwen2-yarn", "qwen3", "qwen3moe"),
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


@pytest.mark.parametrize("name", SPLITTERS)
def test_text_is_split_alike(name: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """A tokenizer trained with each splitter: with other tokens the model would say something else."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = Path(shutil.copytree(tiny("qwen2"), tmp_path / "model"))
    expressions, digits = SPLITTERS[name]
    steps = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
    steps += [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([HARD_TEXT] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    write_f32(folder, tmp_path / "model.gguf")
    text = HARD_TEXT + " fox 12345 return\n\n  x"
    ids = token_ids(folder, text)
    want, got = reference(folder, ids), logprobs(tmp_path / "model.gguf", ids[0], text)
    assert max(abs(want[token] - value) for token, value in got.items()) < BUDGET
