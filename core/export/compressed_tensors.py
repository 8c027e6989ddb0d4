"""compressed-tensors folders (vLLM, transformers): `quantization_config` of config.json.

What stands there is what the library `compressed-tensors` reads; it refuses keys that it does not know inside a scheme,
so a scheme has the keys that every version has and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from core.checkpoint.base import Checkpoint
from core.contract import ElementType
from core.export.ecosystem import ALL_EXPERTS, Ecosystem, Words, ignored_modules, module
from core.formats.coded import Coded
from core.formats.float4_packed import CompressedFloat4
from core.formats.numbers import Integers
from core.formats.pack_quantized import PackQuantized
from core.formats.scaled8 import Inputs, Scaled8
from core.tensor_info import Role, TensorInfo

# Parts beside the decoder in a model that sees or hears; 'language_model' is the decoder in such a model.
_TOWERS = frozenset(
    {"language_model", "vision_tower", "vision_model", "visual", "audio_tower", "multi_modal_projector", "connector"}
)

ONLINE_GROUP = "R4"  # SpinQuant's name of the rotation before down projections; the tensor's name has it, too
_CACHE = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}


class CompressedTensors(Ecosystem):
    """One scheme targets the class Linear; several their modules by name, since a class can not tell them apart."""

    name = "compressed-tensors"

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        return Words({"quantization_config": quantization_config(checkpoint.tensors, chosen)})

    def with_rotation(self, words: Words, checkpoint: Checkpoint, run: int) -> Words:
        transforms = {"transform_config": transform_config(checkpoint.tensors, run)}
        config = {**words.config["quantization_config"], **transforms}
        return replace(words, config={**words.config, "quantization_config": config})

    def with_cache(self, words: Words) -> Words:
        config = {**words.config["quantization_config"], "kv_cache_scheme": _CACHE}
        return replace(words, config={**words.config, "quantization_config": config})


def quantization_config(tensors: Iterable[TensorInfo], chosen: Mapping[str, Coded]) -> dict[str, Any]:
    """A group for each scheme, and every matrix that has none under `ignore`."""
    tensors = tuple(tensors)
    towers = has_towers(tensors)
    schemes = {name: _Scheme.of(form) for name, form in chosen.items()}
    distinct = list(dict.fromkeys(schemes.values()))
    formats = list(dict.fromkeys(s.format for s in distinct))
    groups = {}
    for number, scheme in enumerate(distinct):
        names = [n for name, own in schemes.items() if own == scheme for n in spellings(module(name), towers)]
        groups[f"group_{number}"] = {
            "targets": ["Linear"] if len(distinct) == 1 else names,
            "weights": scheme.weights,
            "input_activations": scheme.inputs,
            "output_activations": None,
            "format": scheme.format,
        }
    return {
        "config_groups": groups,
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": None,
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "ignore": list(dict.fromkeys(n for m in ignored_modules(tensors, chosen) for n in spellings(m, towers))),
    }


@dataclass(frozen=True)
class _Scheme:
    """One entry of `config_groups`. Its mappings are kept as sorted pairs, so that equal schemes are found."""

    format: str
    _weights: tuple[tuple[str, Any], ...]
    _inputs: tuple[tuple[str, Any], ...] | None = None

    @staticmethod
    def of(form: Coded) -> _Scheme:
        if isinstance(form, PackQuantized):
            weights = {
                "num_bits": form.bits,
                "type": "int",
                "symmetric": form.symmetric,
                "group_size": form.group or None,
                "strategy": "group" if form.group else "channel",
                "dynamic": False,
            }
            return _Scheme("pack-quantized", tuple(weights.items()))
        if isinstance(form, CompressedFloat4):
            return _float4(form)
        if isinstance(form, Scaled8):
            return _eight_bits(form)
        raise ValueError(f"{form.name} is no compressed-tensors format")

    @property
    def weights(self) -> dict[str, Any]:
        return dict(self._weights)

    @property
    def inputs(self) -> dict[str, Any] | None:
        return None if self._inputs is None else dict(self._inputs)


def _float4(form: CompressedFloat4) -> _Scheme:
    """With a tensor scale 'tensor_group' (NVFP4), else 'group' (MXFP4), whose scales are the bytes of E8M0."""
    nvfp4 = form.numbers.scale is ElementType.F8_E4M3
    weights: dict[str, Any] = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "group_size": form.numbers.group,
        "strategy": "tensor_group" if nvfp4 else "group",
        "dynamic": False,
        "scale_dtype": "torch.float8_e4m3fn" if nvfp4 else "torch.uint8",
    }
    inputs = tuple((weights | {"dynamic": "local"}).items()) if form.needs_input else None  # groups as they come
    return _Scheme(f"{'nvfp4' if nvfp4 else 'mxfp4'}-pack-quantized", tuple(weights.items()), inputs)


def _eight_bits(form: Scaled8) -> _Scheme:
    """The schemes W8A8, FP8_DYNAMIC, FP8, FP8_BLOCK and MXFP8, as llm-compressor's presets have them."""
    numbers = form.numbers
    integers = isinstance(numbers, Integers)
    scales = () if numbers.scale.bits > 8 else (("scale_dtype", "torch.uint8"),)
    common = (("num_bits", 8), ("type", "int" if integers else "float"), ("symmetric", True))
    if numbers.tile > 1:
        layout: tuple[tuple[str, Any], ...] = (
            ("group_size", None),
            ("strategy", "block"),
            ("block_structure", (numbers.tile, numbers.group)),
        )
    else:
        strategy = "tensor" if not numbers.tile else "group" if numbers.group else "channel"
        layout = (("group_size", numbers.group or None), ("strategy", strategy))
    inputs = {
        Inputs.TOKEN: (("group_size", None), ("strategy", "token"), ("dynamic", True)),
        Inputs.TENSOR: (("group_size", None), ("strategy", "tensor"), ("dynamic", False)),
        Inputs.GROUP: (("group_size", numbers.group), ("strategy", "group"), ("dynamic", True)),
        Inputs.NONE: None,
    }[form.inputs]
    name = "int-quantized" if integers else "mxfp8-quantized" if scales else "float-quantized"
    return _Scheme(
        name,
        (*common, *layout, ("dynamic", False), *scales),
        None if inputs is None else (*common, *inputs, *scales),
    )


def transform_config(tensors: Iterable[TensorInfo], run: int) -> dict[str, Any]:
    """A Hadamard matrix over runs of each down projection's input, which its weights have taken already."""
    tensors = tuple(tensors)
    downs = [module(t.name) for t in tensors if t.role is Role.FFN_DOWN and t.name.endswith(".weight")]
    if has_towers(tensors):
        targets = [spelled for name in downs for spelled in spellings(name, True)]
    else:
        targets = [rf"re:.*\.{last}$" for last in dict.fromkeys(name.rpartition(".")[2] for name in downs)]
    both = (("input", False), ("weight_input", True))
    apply = [{"targets": targets, "location": where, "inverse": back, "ignore": []} for where, back in both]
    scheme = {
        "type": "hadamard",
        "apply": apply,
        "randomize": False,
        "requires_grad": False,
        "head_dim": run,
        "precision": "torch.float32",
    }
    return {"config_groups": {ONLINE_GROUP: scheme}}


def has_towers(tensors: Iterable[TensorInfo]) -> bool:
    """Whether the model also sees or hears."""
    return any(t.name.partition(".")[0] in _TOWERS for t in tensors)


def spellings(module: str, towers: bool) -> list[str]:
    """The module's name in the file, and in transformers since 4.52 where a model also sees or hears.

    There the decoder is `model.language_model`, its head `lm_head`, and every other part lies under `model`; published
    files keep the older names, which loaders translate for tensors but not inside this list.
    """
    first, _, rest = module.partition(".")
    if not towers or module in ("lm_head", ALL_EXPERTS):
        return [module]
    if first == "language_model":
        return [module, rest.replace("model.", "model.language_model.", 1) if rest.startswith("model.") else rest]
    if first == "model":
        inner = rest.partition(".")[0]
        return [module] if inner in _TOWERS else [module, f"model.language_model.{rest}"]
    return [module, f"model.{module}"]
