"""What each runtime is told so that it keeps its cache in a scheme, or one sentence why it can not."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import UserError
from core.kv.scheme import CacheScheme

# The names that `--kv-cache-dtype` and `-ctk` take, by ours.
_LLAMA = {n: n.lower() for n in ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")}
_VLLM = {
    "F16": "float16",
    "BF16": "bfloat16",
    "FP8": "fp8",
    "FP8-head": "fp8",  # which scales there are, the folder says
    "FP8-E5M2": "fp8_e5m2",
    "INT8": "int8_per_token_head",
    "INT4": "int4_per_token_head",
}
_SGLANG = {"F16": "auto", "BF16": "bf16", "FP8": "fp8_e4m3", "FP8-E5M2": "fp8_e5m2"}
_TENSORRT = ("F16", "BF16", "FP8")
_MLX = {"U8-g64": (8, 64), "U4-g64": (4, 64), "U4-g32": (4, 32), "U2-g32": (2, 32)}
_BLOCK = 32  # values of a head in one of llama.cpp's blocks
ROTATES = 64  # head sizes that llama.cpp (2026) rotates by itself are multiples of it


# The command that each of them is started with.
_PROGRAMS = {"llama.cpp": "llama-server", "vLLM": "vllm serve", "SGLang": "sglang", "MLX": "mlx_lm.generate"}


@dataclass(frozen=True)
class Told:
    """command: the program and its options for the cache. refused: why there are none, and hint: what to do then."""

    runtime: str
    command: str = ""
    refused: str = ""
    hint: str = ""

    @property
    def text(self) -> str:
        return self.command or f"{self.refused} {self.hint}"


def told_runtimes(scheme: CacheScheme, head_dim: int = 0) -> tuple[Told, ...]:
    """What each runtime that sets its cache at start is told, or why it can not keep this one."""
    found = []
    for runtime, program in _PROGRAMS.items():
        try:
            found.append(Told(runtime, f"{program} {cache_flags(runtime, scheme, head_dim)}".rstrip()))
        except UserError as e:
            found.append(Told(runtime, refused=e.message, hint=e.hint))
    return tuple(found)


def cache_flags(runtime: str, scheme: CacheScheme, head_dim: int = 0) -> str:
    """Options of the runtime's own command, '' where it needs none. head_dim: 0 when it is not known.

    Raises UserError for a scheme that the runtime does not take, with what it takes as the next step.
    """
    _check_plain(runtime, scheme)
    if runtime == "llama.cpp":
        return _llama_cpp(scheme, head_dim)
    if runtime == "MLX":
        return _mlx(scheme, head_dim)
    if scheme.keys != scheme.values:
        raise UserError(f"{runtime} keeps keys and values in one format.", "Give one format for both.")
    name = scheme.keys
    if runtime in ("vLLM", "SGLang"):
        names = _VLLM if runtime == "vLLM" else _SGLANG
        return f"--kv-cache-dtype {names[_known(runtime, name, names)]}"
    # The others take the type from the folder, or have 16 bits alone.
    _known(runtime, name, dict.fromkeys(_TENSORRT if runtime == "TensorRT-LLM" else _TENSORRT[:2], ""))
    return ""


def _check_plain(runtime: str, scheme: CacheScheme) -> None:
    if runtime == "llama.cpp" and not (scheme.key_format.is_float and scheme.value_format.is_float):
        turned = scheme.rotate_keys and scheme.rotate_values  # it does so itself
        if turned and CacheScheme(scheme.keys, scheme.values, rotate_keys=True, rotate_values=True) == scheme:
            return
    if not scheme.is_plain:
        raise UserError(
            f"{runtime} has no switch for what '{scheme.text}' adds to the formats.",
            f"Give the formats alone: {scheme.dtype}.",
        )


def _known(runtime: str, name: str, names: dict[str, str]) -> str:
    if name not in names:
        raise UserError(f"{runtime} keeps no cache in {name}.", f"It takes {', '.join(names)}.")
    return name


def _llama_cpp(scheme: CacheScheme, head_dim: int) -> str:
    keys, values = (_LLAMA[_known("llama.cpp", name, _LLAMA)] for name in (scheme.keys, scheme.values))
    coded = not (scheme.key_format.is_float and scheme.value_format.is_float)
    if coded and head_dim % _BLOCK:
        raise UserError(
            f"llama.cpp quantizes a cache in blocks of {_BLOCK}, which do not divide this model's heads of {head_dim}.",
            "Leave its cache in 16 bits.",
        )
    if (scheme.rotate_keys or scheme.rotate_values) and head_dim % ROTATES:
        raise UserError(
            f"llama.cpp rotates heads of a multiple of {ROTATES}, not of {head_dim}.", "Leave rotate out of the scheme."
        )
    attention = "" if scheme.value_format.is_float else " -fa on"  # it refuses quantized values without
    return f"-ctk {keys} -ctv {values}{attention}"


def _mlx(scheme: CacheScheme, head_dim: int) -> str:
    if scheme.keys == scheme.values == "F16" or scheme.keys == scheme.values == "BF16":
        return ""
    if scheme.keys != scheme.values or scheme.keys not in _MLX:
        raise UserError(
            f"MLX keeps no cache in {scheme.dtype}.", f"It takes F16 and, for both, one of {', '.join(_MLX)}."
        )
    bits, group = _MLX[scheme.keys]
    if head_dim % group:
        raise UserError(
            f"MLX quantizes a cache in groups of {group}, which do not divide this model's heads of {head_dim}.",
            "Leave its cache in 16 bits.",
        )
    return f"--kv-bits {bits} --kv-group-size {group} --quantized-kv-start 0"
