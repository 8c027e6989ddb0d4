"""What a quantized cache has to deal with: loud channels of keys, loud tokens of values, and a rotation."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QTabWidget, QVBoxLayout, QWidget

from app.jobs.inspect_more import CACHE_KEY, cache_outliers_work
from app.pages.inspect.measuring import MeasuringView
from app.pages.inspect.side_tabs import HIGH_TABS, SideTabs
from app.pages.inspect.state import InspectState
from app.plots.head_map import HeadOutliers
from app.services import Services
from app.theme import SPACE_2
from app.widgets.basics import EmptyState, label
from app.widgets.text import term
from core.inspect.cache_outliers import CacheOutliers, HeadMap
from core.units import format_count, format_number

WIDE = 600  # px from which two pictures stand beside each other
HINT = "Run the model layer by layer over the included text"


class CacheView(MeasuringView):
    """Runs the model over the included text when asked, and shows keys and values before and after a rotation."""

    def __init__(self, state: InspectState, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(state, services, HINT, parent)
        self.found: CacheOutliers | None = None
        self.summary = label("", wrap=True, selectable=True)
        self.summary.setAccessibleName("What stands out in the cache")
        self.maps = tuple(
            HeadOutliers(name) for name in ("Keys as cached", "Keys rotated", "Values as cached", "Values rotated")
        )
        self._lay_out()
        state.model_changed.connect(self._on_model)
        self._on_model()

    def _lay_out(self) -> None:
        self.empty = EmptyState(
            "The cache is not measured yet",
            "A few hundred tokens show which channels of keys and which tokens of values stand out in each head, and "
            "how far a rotation spreads them before they are quantized.",
            self.start,
            icon="memory-stick",
        )
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        word = term("tokens", "Tokens", "muted")
        word.setBuddy(self.tokens)
        for part in (word, self.tokens, self.again, self.cancel):
            head.addWidget(part)
        head.addWidget(self.progress, 1)
        head.addWidget(self.state_text, 1)
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setStyleSheet(HIGH_TABS)
        self.tabs.setAccessibleName("Pictures of the cache")
        self.tabs.tabBar().setAccessibleName("Pictures of the cache")
        keys, turned_keys, values, turned_values = self.maps
        SideTabs(self.tabs, keys, turned_keys, ("Keys by channel", "Keys rotated"), WIDE)
        SideTabs(self.tabs, values, turned_values, ("Values by token", "Values rotated"), WIDE)
        shown = QWidget()
        column = QVBoxLayout(shown)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_2)
        column.addWidget(self.summary)
        column.addWidget(self.tabs, 1)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.empty)
        self._stack.addWidget(shown)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(head)
        layout.addWidget(self.error)
        layout.addWidget(self._stack, 1)

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Measure the cache of the open model."""
        checkpoint = self._state.checkpoint
        if checkpoint is not None and not self.running:
            work = cache_outliers_work(checkpoint, self.tokens.value())
            self._measure("Measure keys and values", work, CACHE_KEY)

    # ---- what was found --------------------------------------------------------------------------------------------

    def show_found(self, found: CacheOutliers) -> None:
        """Show a measurement of the open model."""
        self.found = found
        self._set_running(False)
        for first, (pair, what, place) in enumerate(
            ((found.keys, "Keys", "channel"), (found.values, "Values", "token"))
        ):
            top = max(each.loudest.ratio for each in pair)
            for picture, shown, when in zip(
                self.maps[2 * first : 2 * first + 2], pair, ("as cached", "rotated"), strict=True
            ):
                picture.show_map(f"{what} {when}", shown, place, top)
        self.summary.setText(in_words(found))
        self._stack.setCurrentIndex(1)

    def _on_model(self) -> None:
        """Another model, or none: nothing of the one before stays."""
        self._forget(CACHE_KEY)
        for picture in self.maps:
            picture.clear()
        self._stack.setCurrentWidget(self.empty)


def in_words(found: CacheOutliers) -> str:
    """What stands out, and what a rotation leaves of it."""
    keys = _pair(found.keys, "channel")
    values = _pair(found.values, "token")
    return f"Over {format_count(found.tokens)} tokens. Keys: {keys} Values: {values}"


def _pair(pair: tuple[HeadMap, HeadMap], place: str) -> str:
    before, after = (each.loudest for each in pair)
    return (
        f"{place} {format_count(before.place)} of layer {before.layer}, head {before.head} reaches "
        f"{format_number(before.ratio, 3)} × its head's median; rotated, the largest is "
        f"{format_number(after.ratio, 3)} ×."
    )
