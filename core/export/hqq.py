"""Folders for the library hqq: `qmodel.pt`, a pickle of each module's parameters, and a plain config.json.

`AutoHQQHFModel.from_quantized` reads it. transformers 5 has no loader for quantized HQQ weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.checkpoint.base import Checkpoint
from core.checkpoint.hf import says_tied
from core.errors import UserError
from core.export.ecosystem import Ecosystem, Placed, Words
from core.export.pytorch_file import Array, Name, Value, known, pytorch_file
from core.export.safetensors_files import SafetensorsArray
from core.formats.coded import Coded
from core.formats.hqq import PACKINGS, HqqFormat
from core.tensor_info import Role

FILE = "qmodel.pt"


class Hqq(Ecosystem):
    """Any mix of its formats can stand in one file: each module says its own."""

    name = "hqq"

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        expert = next((t.name for t in checkpoint.tensors if t.expert is not None), None)
        if expert is not None:
            raise UserError(
                f"The library hqq quantizes linear layers only, and '{expert}' is of one expert, which is none.",
                "Choose another target for a mixture of experts.",
            )
        return Words({})

    def files(
        self,
        checkpoint: Checkpoint,
        arrays: Sequence[SafetensorsArray],
        chosen: Mapping[str, Coded],
        words: Words,
        max_shard: int,
    ) -> Placed:
        modules: dict[str, dict[str, Value]] = {}
        for number, (name, shape, dtype, _) in enumerate(arrays):
            if not known(dtype):
                raise UserError(f"'{name}' is {dtype}, which a PyTorch file can not hold.", "Choose another target.")
            module, _, key = name.rpartition(".")
            modules.setdefault(module, {})[key] = Array(number, dtype, tuple(shape))
        for name, form in chosen.items():
            assert isinstance(form, HqqFormat)
            shape = checkpoint.tensor(name).shape
            modules[name.removesuffix(".weight")] |= _meta(form, (shape[0], shape[1]))
        embed = next((t.name for t in checkpoint.tensors if t.role is Role.EMBED), "")
        if says_tied(checkpoint.config) and embed and "lm_head" not in modules:
            module, _, key = embed.rpartition(".")
            modules["lm_head"] = {"weight": modules[module][key]}
        file, parts = pytorch_file(FILE, modules, [nbytes for *_, nbytes in arrays])
        return (file,), parts, b""


def _meta(form: HqqFormat, shape: tuple[int, int]) -> dict[str, Value]:
    """What hqq 0.2 keeps beside the codes of a module, key by key."""
    return {
        "nbits": form.bits,
        "group_size": form.numbers.size,
        "shape": Name("Size", shape),
        "axis": 1,
        "packing": PACKINGS[form.bits],
        "unpack_view_dtype": Name("int32" if form.bits == 3 else "uint8"),
        "view_as_float": False,
        "quant_scale": False,
        "quant_zero": False,
        "compute_dtype": Name("float16"),
        "offload_meta": False,
        "stores_quant_config": True,
        "channel_wise": True,
        "optimize": True,
        "round_zero": form.bits == 4,
    }
