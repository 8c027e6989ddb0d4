"""What is asked for: which output, of which formats, how numbers are chosen, and on how much text it is measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from core.calibration.settings import CalibrationText
from core.errors import UserError
from core.export.ecosystems import ECOSYSTEMS
from core.formats import FORMATS, Format, find_format
from core.methods.choice import Calibrated, DataMethod
from core.recipe import KEEP, Recipe
from core.targets import Target, find_target

# The formats that are tried where nobody says which: those that the runtimes of an output have kernels for. A folder
# for one format alone can still mix it with 16 bits.
_GGUF = ("Q2_K", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_K", "Q4_1", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0")
CONTAINERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gguf": ("Q4_K_M", _GGUF),
    "compressed-tensors": ("w4a16-g128", ("w4a16-g128", "w4a16-g64", "w4a16-g32", "w8a16-g128", "w8a16-channel")),
    "gptq": ("gptq-4bit-g128", ("gptq-4bit-g128", "gptq-4bit-g64", "gptq-4bit-g32", "gptq-8bit-g128", "gptq-8bit-g32")),
    "mlx": ("mlx-4bit-g64", tuple(f"mlx-{bits}bit-g64" for bits in (2, 3, 4, 5, 6, 8))),
    "hqq": ("hqq-4bit-g64", tuple(f"hqq-{bits}bit-g64" for bits in (2, 3, 4, 8))),
    "awq": ("awq-g64", ("awq-g64",)),
    "bitsandbytes": ("bnb-nf4", ("bnb-nf4",)),
    "fp8": ("hf-fp8", ("hf-fp8",)),
}
# Folders whose runtimes make one matrix of query, key and value, and of gate and up, so that these have one format.
FUSING = frozenset({"compressed-tensors", "GPTQ", "AWQ", "fp8"})
PROBE = CalibrationText(samples=8, length=64)


@dataclass(frozen=True)
class Wish:
    """formats: names, all of one container; () takes the container's usual ones. 16 bits are always possible.

    calibrated: importance, or None for a search without data, as also where no format takes an importance. probe: the
    text on which KL is measured; its path and domains are those of the calibration text when that has any.
    """

    container: str = "gguf"
    formats: tuple[str, ...] = ()
    calibrated: Calibrated | None = field(default_factory=lambda: Calibrated(DataMethod.IMPORTANCE))
    probe: CalibrationText = PROBE

    def __post_init__(self) -> None:
        if self.container not in CONTAINERS:
            raise UserError(
                f"There are no mixed recipes for '{self.container}'.", f"Choose from {', '.join(CONTAINERS)}."
            )
        if self.calibrated is not None and (
            self.calibrated.transforms or self.calibrated.method is not DataMethod.IMPORTANCE
        ):
            raise UserError(
                f"Sensitivities are not measured with {self.calibrated.name}, since each weight would need a run.",
                "Measure with 'importance' or 'clip-search'; the recipe can be given another method afterwards.",
            )
        if not any(f.weighs_columns for f in self.choices()):
            object.__setattr__(self, "calibrated", None)  # importance has nothing to say of any of them

    @property
    def target(self) -> Target:
        """What the recipes start from."""
        usual, own = CONTAINERS[self.container]
        names = self.formats or own
        return find_target(usual if usual in names or self.container == "gguf" else names[0])

    @property
    def fuses(self) -> bool:
        """Whether projections of one input have one format."""
        return self.target.is_folder and ECOSYSTEMS[self.target.ecosystem].name in FUSING

    @property
    def recipe(self) -> Recipe:
        """The target without rules."""
        return Recipe(self.target.name, calibrated=self.calibrated)

    def choices(self) -> tuple[Format, ...]:
        """The formats, each once. Raises UserError for one that can not stand in the output."""
        usual, own = CONTAINERS[self.container]
        container = find_target(usual).container
        found = []
        for name in dict.fromkeys(n for n in self.formats or own if n.lower() != KEEP):
            form = find_format(name, container)
            if form.contract.scale is None:
                raise UserError(f"{form.name} does not quantize.", "Leave it out: 16 bits are always possible.")
            if form.needs_input or (form.ecosystem and form.ecosystem != find_target(usual).ecosystem):
                names = ", ".join(f.name for f in FORMATS if f.ecosystem == find_target(usual).ecosystem)
                raise UserError(f"{form.name} can not be mixed in an output for {self.container}.", f"Use: {names}.")
            found.append(form)
        if not found:
            raise UserError("No format of fewer than 16 bits is given.", f"Name some of {', '.join(own)}.")
        return tuple(found)

    def probe_text(self) -> CalibrationText:
        """With the path and the domains of the calibration text."""
        if self.calibrated is None or self.probe.path or self.probe.domains:
            return self.probe
        text = self.calibrated.text
        return replace(self.probe, path=text.path, domains=text.domains, chat=text.chat)
