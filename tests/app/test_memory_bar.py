"""The memory bar: what it says, from the session alone, at once, and never of the model before."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.devices import DeviceChoice
from app.memory_view import estimate_for
from app.services import Services
from app.session import Session
from app.theme import LIGHT
from app.widgets.memory_bar import MemoryBar, total_text
from core.contract import ByteCount
from core.memory import estimate
from core.models.shape import ModelShape
from core.tensor_info import Role, TensorInfo

SHAPE = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072)
BIG = DeviceChoice("big", "Big GPU", 24_000_000_000, 960e9, own=True, note="A note")
SMALL = DeviceChoice("small", "Small board", 3_000_000_000, 17e9, own=False)


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
    embed = TensorInfo("embed", (128256, 4096), "BF16", nbytes // 10, role=Role.EMBED)
    return OpenModel((embed, TensorInfo("w", (10, 10), "BF16", nbytes - nbytes // 10)))


@pytest.fixture
def bar(services: Services, qtbot) -> MemoryBar:  # type: ignore[no-untyped-def]
    made = MemoryBar(services)
    qtbot.addWidget(made)
    made.setFixedWidth(1100)
    made.set_devices([BIG, SMALL])
    made.show()
    return made


def plain(text: str) -> str:
    return text.replace("\u202f", " ")


def test_total_reads_as_promised() -> None:
    parts = estimate(ByteCount(payload=7_700_000_000), capacity=24_000_000_000)
    assert total_text(parts) == "7.70 GB of 24.00 GB (7.17 of 22.35 GiB)"
    assert total_text(estimate(ByteCount(payload=500_000_000), capacity=24_000_000_000)) == (
        "500.00 MB of 24.00 GB (476.84 MiB of 22.35 GiB)"
    )
    assert total_text(estimate(ByteCount(payload=500_000_000))) == "500.00 MB (476.84 MiB)"


def test_without_a_model_it_says_what_it_is_for(bar: MemoryBar) -> None:
    assert bar.estimate is None
    assert "once one is open" in bar.strip.accessibleDescription()
    assert bar.total.text() == ""


def test_numbers_are_the_estimates(services: Services, bar: MemoryBar) -> None:
    services.session.update(checkpoint=model(3_000_000_000), shape=SHAPE, device=BIG)
    expected = estimate_for(services.session.current)
    assert expected is not None
    assert bar.estimate == expected
    assert bar.verdict.text == "fits"
    assert bar.total.text() == total_text(expected).split(" (")[0], "where there is little room, GiB are in the tooltip"
    assert bar.total.toolTip() == total_text(expected)
    bar.setFixedWidth(1280)
    assert bar.total.text() == total_text(expected)
    words = bar.strip.accessibleDescription()
    for segment in expected.segments:
        if segment.bytes:
            assert segment.label in words
    assert "tokens/s" in bar.bound.text()


def test_too_much_is_said_in_words_and_drawn_past_the_capacity(services: Services, bar: MemoryBar, qtbot) -> None:  # type: ignore[no-untyped-def]
    services.session.update(checkpoint=model(8_000_000_000), shape=SHAPE, device=SMALL)
    assert bar.verdict.state == "error"
    assert bar.verdict.text.endswith("too much")
    assert bar.estimate is not None
    assert bar.estimate.shortfall > 0
    assert bar.strip.segment_rects()[-1][1].right() == pytest.approx(bar.strip.width() - 1, abs=3)


def test_widths_are_in_proportion(services: Services, bar: MemoryBar) -> None:
    services.session.update(checkpoint=model(12_000_000_000), shape=None, device=BIG)
    rects = {segment.key: rect for segment, rect in bar.strip.segment_rects()}
    assert rects["payload"].width() == pytest.approx(bar.strip.width() / 2, abs=4)
    assert rects["free"].width() == pytest.approx(bar.strip.width() / 2, abs=4)
    image = bar.strip.grab().toImage()
    color = image.pixelColor(image.width() // 4, image.height() // 2).name().upper()
    assert color == LIGHT.series[0]


def test_changes_repaint_within_100_ms(services: Services, bar: MemoryBar, qtbot) -> None:  # type: ignore[no-untyped-def]
    many = tuple(TensorInfo(f"layers.{n}.w", (64, 64), "BF16", 8192) for n in range(10_000))
    changes = (
        {"checkpoint": OpenModel(many), "shape": SHAPE},
        {"device": SMALL},
        {"context": 4096},
        {"batch": 4},
        {"device": BIG},
        {"checkpoint": model(3_000_000_000)},
    )
    for change in changes:
        before = bar.strip.grab().toImage()
        begun = time.thread_time()  # what the window's thread itself takes, whatever else the computer does
        services.session.update(**change)
        after = bar.strip.grab().toImage()
        assert time.thread_time() - begun < 0.1, change
        assert before != after, change


def test_never_shows_a_number_of_the_previous_model(services: Services, bar: MemoryBar) -> None:
    services.session.update(checkpoint=model(3_000_000_000), shape=SHAPE, device=BIG)
    services.session.replace(Session(opening=Path("other"), device=BIG))
    assert bar.estimate is None
    assert bar.total.text() == ""
    assert bar.strip.accessibleDescription() == "Reading the model…"
    assert all(not entry.isVisible() for entry in bar._legend.values())


def test_controls_write_the_session_and_follow_it(services: Services, bar: MemoryBar) -> None:
    row = next(r for r in range(bar.device.count()) if bar.device.itemText(r).startswith("Small board"))
    bar.device.setCurrentIndex(row)
    bar.device.activated.emit(row)
    assert services.session.current.device is SMALL
    bar.batch.setValue(8)
    assert services.session.current.batch == 8
    row = next(r for r in range(bar.context.count()) if bar.context.itemData(r) == 2048)
    bar.context.activated.emit(row)
    assert services.session.current.context == 2048
    services.session.update(device=BIG, context=65536, batch=2)
    assert bar.device.currentText() == "Big GPU · 24.00 GB"
    assert plain(bar.context.currentText()) == "65 536 tokens"
    assert bar.batch.value() == 2


def test_no_context_beyond_the_models_own(services: Services, bar: MemoryBar) -> None:
    services.session.update(shape=ModelShape("llama", 2, 64, 2, 2, 32, 128, 100, 2048), context=1024)
    values = [bar.context.itemData(row) for row in range(bar.context.count())]
    assert values == [512, 1024, 2048]


def test_own_devices_stand_first_under_a_heading_that_explains(bar: MemoryBar) -> None:
    texts = [bar.device.itemText(row) for row in range(bar.device.count())]
    assert texts == ["This computer", "Big GPU · 24.00 GB", "Other devices", "Small board · 3.00 GB"]
    model_ = bar.device.model()
    assert not model_.item(0).isEnabled()
    assert model_.item(0).toolTip()
    assert model_.item(1).toolTip() == "A note"


def test_fits_into_the_smallest_supported_width(services: Services, bar: MemoryBar) -> None:
    services.session.update(checkpoint=model(26_000_000_000), shape=SHAPE, device=BIG, context=131072, batch=128)
    assert bar.minimumSizeHint().width() <= 1100
    assert bar.verdict.text.endswith("too much")
    assert bar.total.shown_text() == bar.total.text()
