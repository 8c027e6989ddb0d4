"""The cache's format in the memory bar and in its planner: exact figures, for any shape of model, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.companions import plan_cache
from app.devices import DeviceChoice
from app.dialogs.cache import CacheDialog
from app.help import help_desk
from app.memory_view import cache_of, known_cache, plan_caches
from app.services import Services
from app.widgets.cache_picker import COMMON, NAME, PLANNER
from app.widgets.memory_bar import MemoryBar
from core.kv.planning import offered
from core.kv.scheme import CacheScheme
from core.memory import workspace_bytes
from core.models.shape import ModelShape
from core.serving import serving_target
from core.targets import find_target
from core.tensor_info import TensorInfo

pytestmark = pytest.mark.gui
SHAPE = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072)
BIG = DeviceChoice("big", "Big GPU", 24_000_000_000, 960e9, own=True)
LLAMA3_70B = ModelShape("llama", 80, 8192, 64, 8, 128, 28672, 128256, 8192)
GEMMA = ModelShape("gemma3", 18, 640, 4, 1, 256, 2048, 262144, 32768, tied=True, window=512, window_layers=15)
DEEPSEEK = ModelShape("deepseek2", 60, 5120, 128, 128, 128, 1536, 102400, 4096, latent_rank=512, latent_rope=64)


@dataclass(frozen=True, eq=False)
class OpenModel:
    """What the memory bar asks of a checkpoint."""

    tensors: tuple[TensorInfo, ...]
    path: Path = Path("model")

    @property
    def total_bytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    def close(self) -> None:
        pass


def model(nbytes: int) -> OpenModel:
    return OpenModel((TensorInfo("w", (10, 10), "BF16", nbytes),))


def plain(text: str) -> str:
    return text.replace("\u202f", "\u2009").replace("\u2009", " ")


@pytest.fixture
def bar(services: Services, qtbot) -> MemoryBar:  # type: ignore[no-untyped-def]
    made = MemoryBar(services)
    qtbot.addWidget(made)
    made.setFixedWidth(1100)
    made.setFixedHeight(700)  # a window of its own here, and low ones leave the line out
    made.show()
    return made


@pytest.fixture
def dialog(services: Services, qtbot) -> CacheDialog:  # type: ignore[no-untyped-def]
    made = CacheDialog(services)
    qtbot.addWidget(made)
    made.show()
    return made


def test_the_worked_examples_stand_in_the_bar(services: Services, bar: MemoryBar) -> None:
    """Llama-3-70B beside 35 GB: 106 811 tokens in BF16, 213 623 in FP8; 163 840 values a token are 327.68 kB."""
    weights, work = 39_520_000_000, workspace_bytes(LLAMA3_70B, 8192)
    device = DeviceChoice("two", "Two GPUs", weights + work + 35_000_000_000, 3.35e12, own=False)
    for cache, bits, each, tokens, sequences in (
        ("BF16", "16", "327.68 kB", "106 811", 13),
        ("FP8", "8", "163.84 kB", "213 623", 26),
    ):
        services.session.update(checkpoint=model(weights), shape=LLAMA3_70B, device=device, context=8192, cache=cache)
        assert plain(bar.room.text()) == (
            f"{cache}: {bits} bits a value, {each} a token · "
            f"room for {tokens} tokens, or {sequences} sequences of 8 192"
        )
        assert bar.room.isVisible()
        assert bar.cache.currentData(NAME) == cache


def test_any_shape_is_counted_as_it_is(services: Services) -> None:
    def planned(shape: ModelShape, text: str, context: int, batch: int = 1):  # type: ignore[no-untyped-def]
        services.session.update(checkpoint=model(10**9), shape=shape, device=BIG, context=context, batch=batch)
        return plan_caches(services.session.current, [CacheScheme.parse(text)])[0]

    sliding = planned(GEMMA, "q8_0", 4096)
    assert sliding.bytes == (3 * 4096 + 15 * 512) * 2 * 272
    latent = planned(DEEPSEEK, "q8_0", 10, batch=3)
    assert latent.bytes == 3 * 60 * 10 * 18 * 34
    window = planned(SHAPE, "int4,window=128", 1024)
    assert window.bits == (128 * 16 + 896 * 4.125) / 1024
    assert planned(SHAPE, "q8_0", 4096).sequences == window.sequences or window.bytes_per_token < 2 * 8 * 128 * 32
    services.session.update(device=None)
    assert plan_caches(services.session.current, [CacheScheme()])[0].room is None


def test_choosing_in_the_bar(services: Services, bar: MemoryBar) -> None:
    services.session.update(checkpoint=model(3_000_000_000), shape=SHAPE, device=BIG)
    before = bar.estimate
    names = [bar.cache.itemData(row, NAME) for row in range(bar.cache.count())]
    assert [n for n in names if n] == [n for _, group in COMMON for n in group]
    assert bar.cache.currentText() == "F16 · 16 bits"
    row = names.index("Q4_0")
    bar.cache.activated.emit(row)
    assert services.session.current.cache == "Q4_0"
    assert bar.estimate is not None
    assert before is not None
    assert bar.estimate.bytes_of("kv") * 16 == before.bytes_of("kv") * 4.5
    assert bar.cache.currentText() == "Q4_0 · 4.5 bits"
    bar.cache.activated.emit(names.index("F16"))
    assert services.session.current.cache == "", "what the recipe has is no choice of one's own"
    services.session.update(cache="INT4,window=128")
    assert bar.cache.currentData(NAME) == "INT4,window=128", "what is none of the usual ones is listed, too"
    asked = []
    bar.planner_asked.connect(lambda: asked.append(1))
    assert bar.cache.itemText(bar.cache.count() - 1) == PLANNER
    bar.cache.activated.emit(bar.cache.count() - 1)
    assert asked
    assert bar.cache.currentData(NAME) == "INT4,window=128"
    assert services.session.current.cache == "INT4,window=128"


def test_the_planner_follows_and_changes_the_session(services: Services, dialog: CacheDialog) -> None:
    assert "Open a model first" in dialog.figures.text()
    services.session.update(checkpoint=model(3_000_000_000), shape=SHAPE, device=BIG)
    assert dialog.table.model.rowCount() == len(offered())
    assert not dialog.numbers["window"].isEnabled()
    assert "16 bits" in dialog.numbers["window"].toolTip()
    dialog.keys.setCurrentText("Q8_0")
    dialog.keys.activated.emit(dialog.keys.currentIndex())
    assert services.session.current.cache == "Q8_0/F16"
    dialog.values.setCurrentText("Q4_0")
    dialog.values.activated.emit(dialog.values.currentIndex())
    dialog.numbers["window"].setValue(128)
    dialog.switches["rotate_keys"].click()
    assert services.session.current.cache == "Q8_0/Q4_0,window=128,rotate-keys"
    assert cache_of(services.session.current).window == 128
    assert "no switch" in dialog.told.value("llama.cpp")
    row = next(p for p in dialog.table.model.rows() if p.scheme.text == "LM3,rotate")
    dialog.table.row_activated.emit(row)
    assert services.session.current.cache == "LM3,rotate"
    assert not dialog.switches["rotate_keys"].isEnabled()
    assert "always on" in dialog.switches["rotate_keys"].toolTip()
    services.session.update(cache="Q8_0")
    assert dialog.told.value("llama.cpp") == "llama-server -ctk q8_0 -ctv q8_0 -fa on"
    assert dialog.keys.currentText() == "Q8_0"
    services.session.update(shape=DEEPSEEK)
    assert not dialog.values.isEnabled()
    assert "one vector" in dialog.values.toolTip()


def test_every_control_has_a_name_and_a_tooltip(services: Services, dialog: CacheDialog) -> None:
    services.session.update(checkpoint=model(3_000_000_000), shape=SHAPE, device=BIG, cache="Q8_0")
    for control in (dialog.keys, dialog.values, *dialog.numbers.values(), *dialog.switches.values(), dialog.use):
        assert control.accessibleName() or control.text()
        assert control.toolTip()


def test_the_choice_is_remembered_and_nonsense_is_not() -> None:
    assert known_cache("q8_0/q4_0,window=128") == "Q8_0/Q4_0,window=128"
    assert known_cache("") == known_cache("q9") == known_cache("LM3") == ""


def test_the_window_opens_the_planner_and_commands_follow(loaded) -> None:  # type: ignore[no-untyped-def]
    loaded.actions_by_key["cache"].trigger()
    found = loaded.findChild(CacheDialog)
    assert found is not None
    assert found.isVisible()
    assert plan_cache(loaded) is found
    asked: list[str] = []
    help_desk().asked.connect(asked.append)
    found.help()
    assert asked == ["cache"]
    store = loaded.services.session
    store.update(cache="Q8_0")
    told = []
    for source in (store.current.checkpoint.path, Path("another")):
        card = SimpleNamespace(entry=SimpleNamespace(order=SimpleNamespace(source=source)))
        card.set_cache = lambda *what: told.append(what)
        loaded.page("convert")._tell_cache(card, store.current)
    head_dim = store.current.shape.head_dim
    assert told == [(CacheScheme("Q8_0"), head_dim), (CacheScheme("Q8_0"), 0)], "0: the heads of another model"


def test_a_finished_file_s_command_says_the_cache() -> None:
    def commands(cache: str, head_dim: int):  # type: ignore[no-untyped-def]
        scheme = CacheScheme.parse(cache)
        return {c.runtime: c for c in serving_target(find_target("Q4_K_M"), Path("o.gguf"), "", scheme, head_dim)}

    assert commands("q8_0/q4_0", 64)["llama.cpp"].text == "llama-server -m o.gguf -ctk q8_0 -ctv q4_0 -fa on"
    assert "do not divide" in commands("q8_0", 80)["llama.cpp"].note
