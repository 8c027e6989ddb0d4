"""The one place through which texts go that the program itself has written: the English ones, or a translation of them.

What stands in the source is English and the key. A translation is a file of Qt's, resources/languages/bitsmith_LL.qm,
made from the list that `python packaging/texts.py` prints. Without one for the system's language, or where a text has
none, the English stands. Sentences with numbers and names in them are made in core, and are English everywhere.
"""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QLocale, QTranslator

from app.assets import RESOURCES

CONTEXT = "Bitsmith"
FOLDER = RESOURCES / "languages"


def say(text: str) -> str:
    """A text in the language in force."""
    return QCoreApplication.translate(CONTEXT, text) if text else text


def install(locale: QLocale | None = None) -> QTranslator | None:
    """Put the system's language in force, before the window is made; None where there is no translation into it."""
    app = QCoreApplication.instance()
    translator = QTranslator(app)
    found = translator.load(locale or QLocale.system(), "bitsmith", "_", str(FOLDER))
    if not found or app is None:
        return None
    app.installTranslator(translator)
    return translator
