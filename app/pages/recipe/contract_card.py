"""The numeric contract of a format: everything that the file will say about its numbers."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.widgets.basics import Card
from app.widgets.text import KeyValue, explain
from core.catalog import granularity_text
from core.contract import ElementType, NumericContract

TERMS = {  # field → glossary term
    "Element": "element type",
    "Bits": "payload bits",
    "Codes": "code",
    "Granularity": "granularity",
    "Scale": "scale",
    "Zero point": "zero point",
    "Symmetric": "symmetric",
    "Block": "block",
    "Packing": "packing",
    "Levels": "level",
    "Tensor scale": "tensor scale",
    "Outer scale": "double quantization",
    "Effective bits": "effective bits",
}


class ContractCard(Card):
    """Every field of a NumericContract with its value."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Contract", parent)
        self.setToolTip(explain("contract"))
        self.fields = KeyValue()
        self.add(self.fields)
        self.body.addStretch(1)

    def show_contract(self, contract: NumericContract) -> None:
        for name, text in contract_fields(contract).items():
            self.fields.set(name, text, term_name=TERMS.get(name, ""))


def contract_fields(c: NumericContract) -> dict[str, str]:
    """Each field in words, in reading order."""
    coded = c.element in (ElementType.INT, ElementType.CODEBOOK, ElementType.TERNARY)
    zero = c.zero.label if c.zero is not None and c.zero is not ElementType.INT else ""
    if c.zero_bits:
        zero = f"{c.zero_bits}-bit integer"
    return {
        "Format": c.name,
        "Element": {ElementType.INT: "integer code", ElementType.CODEBOOK: "index into levels"}.get(
            c.element, "−1, 0 or +1" if c.element is ElementType.TERNARY else c.element.label
        ),
        "Bits": f"{c.bits:g} a value",
        "Effective bits": f"{c.effective_bits:.4g} a value, scales included",
        "Codes": f"{c.code_min} … {c.code_max}".replace("-", "−") if coded else "–",
        "Granularity": granularity_text(c),
        "Scale": c.scale.label if c.scale is not None else "none",
        "Zero point": zero or "none",
        "Symmetric": "yes: 0 is always code 0" if c.symmetric else "no: each group has a zero point or minimum",
        "Block": f"{c.block} values stored together" if c.block > 1 else "none: any row length",
        "Levels": _levels(c),
        "Tensor scale": c.tensor_scale.label if c.tensor_scale is not None else "none",
        "Outer scale": f"{c.outer_scale.label}, one for {c.outer_group} scales"
        if c.outer_scale is not None
        else "none",
        "Packing": c.packing or "–",
    }


def _levels(c: NumericContract) -> str:
    if c.levels:
        return ", ".join(f"{v:g}" for v in c.levels).replace("-", "−")
    whole = c.element in (ElementType.INT, ElementType.TERNARY)
    return "evenly spaced" if whole else f"the values of {c.element.label}"
