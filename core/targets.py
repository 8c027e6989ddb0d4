"""What a conversion can be asked for by name: GGUF mixes and types, and the formats of folders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from core.errors import UserError
from core.export.gguf_values import FILE_TYPES
from core.formats import FORMATS
from core.formats.coded import Coded


class Kind(Enum):
    """mix: different types for different tensors, by llama.cpp's rules. type: one type wherever it fits.

    scheme: one format of a folder for every linear layer, or, for a plain folder, for all that is packed.
    """

    MIX = "mix"
    TYPE = "type"
    SCHEME = "scheme"


@dataclass(frozen=True)
class Target:
    """container: 'gguf' (one file) or 'safetensors' (a folder). base: the format most tensors get.

    file_type: GGUF `general.file_type` (llama.cpp's llama_ftype); −1 for folders. summary: one line for the window.
    ecosystem: of a folder, in `core.export.ecosystems`. needs_importance: some tensors get a format that does.
    """

    name: str
    container: str
    kind: Kind
    base: str
    file_type: int
    summary: str
    ecosystem: str = ""
    needs_importance: bool = False

    @property
    def is_folder(self) -> bool:
        return self.container == "safetensors"


def _mix(name: str, base: str, summary: str) -> Target:
    return Target(name, "gguf", Kind.MIX, base, FILE_TYPES[name.removesuffix("_MOE")], summary)


def _weighed(name: str, base: str, summary: str) -> Target:
    return replace(_mix(name, base, f"{summary}; needs an importance matrix"), needs_importance=True)


def _type(name: str, summary: str) -> Target:
    return Target(name, "gguf", Kind.TYPE, name, FILE_TYPES[name], summary)


def _scheme(f: Coded) -> Target:
    return Target(f.name, f.container, Kind.SCHEME, f.name, -1, f.summary, f.ecosystem)


TARGETS: tuple[Target, ...] = (
    _mix("Q8_0", "Q8_0", "8 bits, as good as the original"),
    _mix("Q6_K", "Q6_K", "6 bits, very close to the original"),
    _mix("Q5_K_M", "Q5_K", "5 bits, more for sensitive tensors"),
    _mix("Q5_K_S", "Q5_K", "5 bits"),
    _mix("Q5_1", "Q5_1", "5 bits with a minimum, blocks of 32"),
    _mix("Q5_0", "Q5_0", "5 bits, blocks of 32"),
    _mix("Q4_K_M", "Q4_K", "4 bits, more for sensitive tensors; the usual choice"),
    _mix("Q4_K_S", "Q4_K", "4 bits, a little more for the first layers"),
    _mix("Q4_1", "Q4_1", "4 bits with a minimum, blocks of 32"),
    _mix("Q4_0", "Q4_0", "4 bits, blocks of 32; fast on CPUs"),
    _mix("IQ4_NL", "IQ4_NL", "4 bits on uneven levels, blocks of 32"),
    _mix("IQ4_XS", "IQ4_XS", "4 bits on uneven levels, smallest of the 4-bit mixes"),
    _mix("IQ3_M", "IQ3_S", "3 bits from a grid, more for sensitive tensors"),
    _mix("IQ3_S", "IQ3_S", "3 bits from a grid; better than Q3_K at its size"),
    _weighed("IQ3_XS", "IQ3_S", "3 bits from a grid, fewer for query, key and the middle layers"),
    _weighed("IQ3_XXS", "IQ3_XXS", "3 bits from a grid, smallest"),
    _mix("Q3_K_L", "Q3_K", "3 bits, most bits for sensitive tensors"),
    _mix("Q3_K_M", "Q3_K", "3 bits, more for sensitive tensors"),
    _mix("Q3_K_S", "Q3_K", "3 bits; quality falls visibly"),
    _mix("Q2_K", "Q2_K", "2 bits, more for sensitive tensors; quality falls a lot"),
    _weighed("IQ2_M", "IQ2_S", "2 bits from a grid, more for sensitive tensors"),
    _weighed("IQ2_S", "IQ2_XS", "2 bits from a grid, more for some tensors"),
    _weighed("IQ2_XS", "IQ2_XS", "2 bits from a grid"),
    _weighed("IQ2_XXS", "IQ2_XXS", "2 bits from a grid, the least"),
    _mix("TQ2_0", "TQ2_0", "ternary; only for models trained that way"),
    _mix("TQ1_0", "TQ1_0", "ternary, packed tighter; only for models trained that way"),
    _mix("MXFP4_MOE", "MXFP4", "4-bit floats for experts, 8 bits for the rest"),
    _mix("BF16", "BF16", "16-bit floats, the original's range"),
    _mix("F16", "F16", "16-bit floats"),
    _mix("F32", "F32", "32-bit floats"),
    _type("Q5_K", "Q5_K for every weight it fits"),
    _type("Q4_K", "Q4_K for every weight it fits"),
    _type("Q3_K", "Q3_K for every weight it fits"),
    _type("MXFP4", "4-bit floats with a power-of-two scale, blocks of 32"),
    _type("NVFP4", "4-bit floats with an 8-bit float scale, blocks of 16"),
    *(_scheme(f) for f in FORMATS if isinstance(f, Coded)),
    Target(
        "hf-bf16", "safetensors", Kind.SCHEME, "BF16", -1,
        "16-bit floats in a plain folder: what is packed is unpacked", "plain",
    ),
)  # fmt: skip

_BY_NAME = {t.name.lower(): t for t in TARGETS}


def find_target(name: str) -> Target:
    """The target of that name, in any case, '-' and '_' alike. Raises UserError with the nearest names."""
    key = name.strip().lower()
    found = _BY_NAME.get(key) or _BY_NAME.get(key.replace("-", "_")) or _BY_NAME.get(key.replace("_", "-"))
    if found is None:
        import difflib

        near = difflib.get_close_matches(key, _BY_NAME, n=3, cutoff=0.5)
        names = ", ".join(_BY_NAME[n].name for n in near)
        hint = f"Did you mean {names}?" if names else "See the names with 'bitsmith formats'."
        raise UserError(f"There is no target '{name}'.", hint)
    return found
