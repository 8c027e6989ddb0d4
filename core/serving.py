"""How a file that has just been written is served: the exact command or program for each runtime that reads it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.catalog import base_of, readers
from core.errors import UserError
from core.formats.coded import Coded
from core.hardware import matrix
from core.hardware.matrix import FAVOURED, State, family, row_for
from core.kv.flags import cache_flags
from core.kv.scheme import CacheScheme
from core.targets import Target

if TYPE_CHECKING:
    from core.plan import Plan


@dataclass(frozen=True)
class Command:
    """runtime: of the support matrix. text: for a shell, or Python for Transformers. note: what must be known or
    installed before, '' when nothing."""

    runtime: str
    text: str
    note: str = ""


def serving(plan: Plan, output: Path, scheme: CacheScheme | None = None) -> tuple[Command, ...]:
    """A Command for each runtime that runs the plan's result somewhere; those that are made for it first.

    scheme: what they shall keep keys and values in. A runtime that can not says so in its note.
    """
    return serving_target(plan.target, output, plan.recipe.cache, scheme, rotated=plan.recipe.online)


def with_cache(command: Command, scheme: CacheScheme, head_dim: int = 0) -> Command:
    """The command with the options for a cache in this scheme; where there are none, the note says why."""
    try:
        flags = cache_flags(command.runtime, scheme, head_dim)
    except UserError as e:
        return replace(command, note=f"{command.note} {e.message}".strip())
    return replace(command, text=f"{command.text} {flags}") if flags else command


# Newer versions take the cache's type from the folder; older ones keep 16 bits unless told. TensorRT-LLM reads it.
_EIGHT_BIT_CACHE = {"vLLM": " --kv-cache-dtype fp8", "SGLang": " --kv-cache-dtype fp8_e4m3"}


def serving_target(
    target: Target,
    output: Path,
    cache: str = "",
    scheme: CacheScheme | None = None,
    head_dim: int = 0,
    rotated: bool = False,
) -> tuple[Command, ...]:
    """The same for a target alone, of which nothing but the format counts. cache: the recipe's, where no scheme is
    given. head_dim: of the model, 0: not known. rotated: inputs are, while the model runs."""
    kind = family(target.name)
    # Transformers unpacks what it has no kernels for, and then runs it all the same.
    known = [*readers(target), *(r for r in matrix.readers(kind, unpacked=True) if r == "Transformers")]
    order = sorted(
        (r for r in dict.fromkeys(known) if r in _COMMANDS), key=lambda r: (r != _made_for(target), _place(r))
    )
    found = tuple(_COMMANDS[r](target, output, kind) for r in order)
    if rotated:
        found = tuple(replace(c, note=f"{c.note} {_ROTATES}".strip()) for c in found if c.runtime == "vLLM")
    if scheme is not None:
        return tuple(with_cache(command, scheme, head_dim) for command in found)
    return tuple(replace(c, text=c.text + _EIGHT_BIT_CACHE.get(c.runtime, "")) for c in found) if cache else found


_ROTATES = "It rotates inputs of down projections on one GPU, and not those of experts."


def _place(runtime: str) -> int:
    return FAVOURED.index(runtime) if runtime in FAVOURED else len(FAVOURED)


def _made_for(target: Target) -> str:
    if not target.is_folder:
        return "llama.cpp"
    own = {"mlx": "MLX", "modelopt": "TensorRT-LLM", "bitsandbytes": "Transformers", "hqq": "hqq"}
    return own.get(target.ecosystem.lower(), "vLLM")


def quoted(path: Path) -> str:
    """A path as one word of a shell's command."""
    if sys.platform == "win32":
        return subprocess.list2cmdline([str(path)])
    return shlex.quote(str(path))


def _llama_cpp(_target: Target, output: Path, _kind: str) -> Command:
    return Command("llama.cpp", f"llama-server -m {quoted(output)}")


def _vllm(target: Target, output: Path, kind: str) -> Command:
    text, note = f"vllm serve {quoted(output)}", ""
    ecosystem = target.ecosystem.lower()
    if not target.is_folder:
        text += " --tokenizer ORIGINAL"
        note = (
            "Needs the plugin (pip install vllm-gguf-plugin). Put the original model's folder or name in place of "
            "ORIGINAL: vLLM's own reading of GGUF tokenizers is slow and unreliable."
        )
    elif ecosystem == "awq":
        text += " --dtype float16"
        note = "The scales are F16, so activations are, too."
    elif ecosystem == "bitsandbytes":
        note = "vLLM 0.28 and newer need the plugin (pip install vllm-bnb-plugin)."
    elif kind[:5] in ("w2a16", "w3a16", "w5a16", "w6a16", "w7a16"):
        note = "Its kernels for this width (Humming) are optional and must be installed."
    return Command("vLLM", text, note)


def _sglang(target: Target, output: Path, _kind: str) -> Command:
    gguf = "" if target.is_folder else " --load-format gguf --quantization gguf"
    dtype = " --dtype float16" if target.ecosystem.lower() == "awq" else ""
    return Command("SGLang", f"python -m sglang.launch_server --model-path {quoted(output)}{gguf}{dtype}")


def _mlx(_target: Target, output: Path, _kind: str) -> Command:
    note = f"mlx_lm.server --model {quoted(output)} serves it."
    return Command("MLX", f'mlx_lm.generate --model {quoted(output)} --prompt "The capital of France is"', note)


def _tensorrt(_target: Target, output: Path, _kind: str) -> Command:
    return Command("TensorRT-LLM", f"trtllm-serve {quoted(output)}")


_PACKAGES = {
    "gptq": "Needs gptqmodel and optimum.",
    "awq": "Needs gptqmodel.",
    "bitsandbytes": "Needs bitsandbytes and accelerate.",
    "compressed-tensors": "Needs compressed-tensors.",
    "": "Needs gguf. The weights are unpacked to F32 or the dtype that is asked for.",
}


def _transformers(target: Target, output: Path, kind: str) -> Command:
    imports, given = ["AutoModelForCausalLM", "AutoTokenizer"], ""
    place, ecosystem = output, target.ecosystem.lower()
    tokenizer = ""
    if not target.is_folder:
        place = output.parent
        given = tokenizer = f", gguf_file={output.name!r}"
    elif ecosystem == "awq":
        given = ', dtype="float16"'
    else:
        given = ', dtype="auto"'
    base = base_of(target)
    if ecosystem == "compressed-tensors" and isinstance(base, Coded) and not base.contract.symmetric:
        imports.append("CompressedTensorsConfig")
        given += ", quantization_config=CompressedTensorsConfig(dequantize=True)"
    text = "\n".join(
        (
            f"from transformers import {', '.join(imports)}",
            f"path = {str(place)!r}",
            f"tokenizer = AutoTokenizer.from_pretrained(path{tokenizer})",
            f'model = AutoModelForCausalLM.from_pretrained(path, device_map="auto"{given})',
            'inputs = tokenizer("The capital of France is", return_tensors="pt").to(model.device)',
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=32)[0]))",
        )
    )
    row = row_for(kind, "Transformers")
    stored = row is not None and all(State(c["state"]) in (State.STORED, State.IMPOSSIBLE) for c in row["cells"])
    notes = [_PACKAGES.get(ecosystem, "")] if target.is_folder or not stored else [_PACKAGES[""]]
    if stored and target.is_folder:
        notes.append("It is unpacked to 16 bits at load: no memory is saved.")
    return Command("Transformers", text, " ".join(filter(None, notes)))


def _hqq(_target: Target, output: Path, _kind: str) -> Command:
    text = "\n".join(
        (
            "import torch",
            "from hqq.models.hf.base import AutoHQQHFModel",
            "from transformers import AutoTokenizer",
            f"path = {str(output)!r}",
            "tokenizer = AutoTokenizer.from_pretrained(path)",
            'model = AutoHQQHFModel.from_quantized(path, compute_dtype=torch.float16, device="cuda")',
            'inputs = tokenizer("The capital of France is", return_tensors="pt").to("cuda")',
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=32)[0]))",
        )
    )
    return Command(
        "hqq", text, 'Needs the library hqq; device="cpu" with compute_dtype=torch.float32 runs it without a GPU.'
    )


_COMMANDS: dict[str, Callable[[Target, Path, str], Command]] = {
    "llama.cpp": _llama_cpp,
    "vLLM": _vllm,
    "Transformers": _transformers,
    "SGLang": _sglang,
    "TensorRT-LLM": _tensorrt,
    "MLX": _mlx,
    "hqq": _hqq,
}
