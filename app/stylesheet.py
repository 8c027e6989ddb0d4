"""The window's style sheet, made from a Theme.

Roles are dynamic properties, set by the widgets of `app.widgets`:
  textRole    display | title | heading | muted | caption | mono | ok | warning | error | accent
  buttonRole  primary | quiet | nav
  frameRole   page | card | bar | nav | banner | line
A focused control's border grows from 1 to 2 px; its padding shrinks by as much, so nothing moves.
"""

from __future__ import annotations

from app.icons import icon_file
from app.theme import BASE, CAPTION, DISPLAY, HEADING, MONO_FAMILY, RADIUS, ROW_HEIGHT, TITLE, Theme


def stylesheet(theme: Theme) -> str:
    """Style sheet for `ThemeManager.dress`."""
    values = {key: value for key, value in vars(theme).items() if isinstance(value, str)}
    values |= {
        "caption": f"{CAPTION}px",
        "base": f"{BASE}px",
        "heading": f"{HEADING}px",
        "title": f"{TITLE}px",
        "display": f"{DISPLAY}px",
        "mono": MONO_FAMILY,
        "radius": f"{RADIUS}px",
        "row": f"{ROW_HEIGHT}px",
        "check": icon_file("check", theme.on_accent),
        "check_text": icon_file("check", theme.text),
        "check_off": icon_file("check", theme.disabled),
        "down": icon_file("chevron-down", theme.muted),
        "down_off": icon_file("chevron-down", theme.disabled),
        "up": icon_file("chevron-up", theme.muted),
        "up_off": icon_file("chevron-up", theme.disabled),
        "right": icon_file("chevron-right", theme.muted),
    }
    sheet = _SHEET
    for key in sorted(values, key=len, reverse=True):
        sheet = sheet.replace(f"@{key}@", values[key])
    return sheet


_SHEET = """
QWidget { color: @text@; }
QMainWindow, QDialog, QWidget[frameRole="page"] { background: @window@; }
QLabel { background: transparent; }
QLabel:disabled { color: @disabled@; }
*[textRole="display"] { font-size: @display@; font-weight: 600; }
*[textRole="title"] { font-size: @title@; font-weight: 600; }
*[textRole="heading"] { font-size: @heading@; font-weight: 600; }
*[textRole="muted"] { color: @muted@; }
*[textRole="caption"] { color: @muted@; font-size: @caption@; }
*[textRole="mono"] { font-family: "@mono@"; }
*[textRole="ok"] { color: @ok@; }
*[textRole="warning"] { color: @warning@; }
*[textRole="error"] { color: @error@; }
*[textRole="accent"] { color: @accent@; }

QFrame[frameRole="card"] { background: @surface@; border: 1px solid @hairline@; border-radius: @radius@; }
QFrame[frameRole="card"][selected="true"] { border: 2px solid @accent@; background: @selected@; }
QFrame[frameRole="card"]:focus { border: 2px solid @accent@; }
QFrame[frameRole="banner"] { background: @surface@; border: 1px solid @border@; border-radius: @radius@; }
QFrame[frameRole="bar"] { background: @window@; border: none; border-top: 1px solid @hairline@; }
QFrame[frameRole="nav"] { background: @sunken@; border: none; border-right: 1px solid @hairline@; }
QFrame[frameRole="line"] { background: @hairline@; border: none; }

QPushButton, QToolButton {
  background: @surface@; color: @text@; border: 1px solid @border@; border-radius: @radius@;
  min-height: 22px; padding: 4px 12px;
}
QToolButton { padding: 4px 6px; }
QPushButton:hover, QToolButton:hover { background: @hover@; }
QPushButton:pressed, QToolButton:pressed { background: @selected@; }
QPushButton:checked, QToolButton:checked { background: @selected@; border-color: @accent@; color: @accent@; }
QPushButton:focus { border: 2px solid @accent@; padding: 3px 11px; }
QToolButton:focus { border: 2px solid @accent@; padding: 3px 5px; }
QPushButton:disabled, QToolButton:disabled { color: @disabled@; background: @window@; border: 1px dashed @border@; }
QPushButton[buttonRole="primary"] {
  background: @accent@; color: @on_accent@; border: 1px solid @accent@; font-weight: 600; padding: 4px 16px;
}
QPushButton[buttonRole="primary"]:hover { background: @accent_hover@; border-color: @accent_hover@; }
QPushButton[buttonRole="primary"]:disabled {
  background: @window@; color: @disabled@; border: 1px dashed @border@;
}
QPushButton[buttonRole="quiet"], QToolButton[buttonRole="quiet"] { background: transparent; border-color: transparent; }
QPushButton[buttonRole="quiet"]:hover, QToolButton[buttonRole="quiet"]:hover { background: @hover@; }
QPushButton[buttonRole="quiet"]:focus, QToolButton[buttonRole="quiet"]:focus { border-color: @accent@; }
QPushButton[buttonRole="nav"] {
  background: transparent; border: 2px solid transparent; text-align: left; padding: 4px 10px; min-height: 24px;
}
QPushButton[buttonRole="nav"]:hover { background: @hover@; }
QPushButton[buttonRole="nav"]:checked { background: @selected@; color: @accent@; font-weight: 600; }
QPushButton[buttonRole="nav"]:focus { border-color: @accent@; }
QPushButton::menu-indicator { image: url("@down@"); width: 14px; height: 14px; right: 8px;
  subcontrol-origin: padding; subcontrol-position: center right; }
QPushButton[hasMenu="true"] { padding-right: 28px; }
QToolButton::menu-indicator { image: none; }

QLineEdit, QComboBox, QSpinBox, QDoubleSpinBox, QPlainTextEdit, QTextEdit {
  background: @surface@; color: @text@; border: 1px solid @border@; border-radius: @radius@;
  selection-background-color: @accent@; selection-color: @on_accent@;
}
QLineEdit, QComboBox, QSpinBox, QDoubleSpinBox { min-height: 22px; padding: 4px 8px; }
QLineEdit:focus, QComboBox:focus, QSpinBox:focus, QDoubleSpinBox:focus {
  border: 2px solid @accent@; padding: 3px 7px;
}
QSpinBox, QDoubleSpinBox { max-height: 22px; }
QPlainTextEdit, QTextEdit { padding: 4px; }
QPlainTextEdit:focus, QTextEdit:focus { border: 2px solid @accent@; padding: 3px; }
QLineEdit:disabled, QComboBox:disabled, QSpinBox:disabled, QDoubleSpinBox:disabled, QPlainTextEdit:disabled {
  color: @disabled@; background: @window@; border: 1px dashed @border@;
}
QLineEdit[state="error"] { border-color: @error@; }
QComboBox { padding-right: 2px; combobox-popup: 0; }
QComboBox:focus { padding-right: 1px; }
QComboBox::drop-down { border: none; width: 24px; subcontrol-origin: padding; subcontrol-position: center right; }
QComboBox::down-arrow { image: url("@down@"); width: 14px; height: 14px; }
QComboBox::down-arrow:disabled { image: url("@down_off@"); }
QComboBox QAbstractItemView { background: @surface@; border: 1px solid @border@; outline: none; padding: 4px; }
QComboBox QAbstractItemView::item { min-height: 26px; padding: 0 8px; border-radius: 4px; }
QComboBox QAbstractItemView::item:selected { background: @selected@; color: @text@; }
QComboBox QAbstractItemView::item:disabled { color: @muted@; border-bottom: 1px solid @hairline@; }
QSpinBox::up-button, QDoubleSpinBox::up-button { border: none; width: 20px; subcontrol-position: top right;
  subcontrol-origin: border; }
QSpinBox::down-button, QDoubleSpinBox::down-button { border: none; width: 20px; subcontrol-position: bottom right;
  subcontrol-origin: border; }
QSpinBox::up-arrow, QDoubleSpinBox::up-arrow { image: url("@up@"); width: 12px; height: 12px; }
QSpinBox::down-arrow, QDoubleSpinBox::down-arrow { image: url("@down@"); width: 12px; height: 12px; }
QSpinBox::up-arrow:disabled, QDoubleSpinBox::up-arrow:disabled, QSpinBox::up-arrow:off { image: url("@up_off@"); }
QSpinBox::down-arrow:disabled, QDoubleSpinBox::down-arrow:disabled, QSpinBox::down-arrow:off {
  image: url("@down_off@"); }

QCheckBox, QRadioButton { spacing: 8px; border: 2px solid transparent; border-radius: 4px; padding: 2px;
  background: transparent; }
QCheckBox:focus, QRadioButton:focus { border-color: @accent@; }
QCheckBox:disabled, QRadioButton:disabled { color: @disabled@; }
QCheckBox::indicator, QTableView::indicator, QTreeView::indicator {
  width: 14px; height: 14px; border: 1px solid @border@; border-radius: 3px; background: @surface@; }
QCheckBox::indicator:checked, QTableView::indicator:checked, QTreeView::indicator:checked {
  background: @accent@; border-color: @accent@; image: url("@check@"); }
QCheckBox::indicator:disabled { background: @window@; border: 1px dashed @border@; }
QCheckBox::indicator:checked:disabled { background: @window@; image: url("@check_off@"); }
QRadioButton::indicator { width: 12px; height: 12px; border: 1px solid @border@; border-radius: 7px;
  background: @surface@; }
QRadioButton::indicator:checked { border: 4px solid @accent@; width: 6px; height: 6px; }
QRadioButton::indicator:checked:disabled { border-color: @disabled@; }

QSlider { min-height: 22px; border: 2px solid transparent; border-radius: 4px; }
QSlider:focus { border-color: @accent@; }
QSlider::groove:horizontal { height: 4px; background: @border@; border-radius: 2px; }
QSlider::sub-page:horizontal { background: @accent@; border-radius: 2px; }
QSlider::handle:horizontal { width: 14px; margin: -5px 0; border-radius: 7px; background: @accent@; }
QSlider::handle:horizontal:disabled, QSlider::sub-page:horizontal:disabled { background: @disabled@; }

QProgressBar { background: @surface@; border: 1px solid @border@; border-radius: 4px; text-align: center;
  min-height: 8px; max-height: 8px; }
QProgressBar::chunk { background: @accent@; border-radius: 3px; }

QAbstractScrollArea { background: @surface@; border: none; }
QPlainTextEdit, QTextEdit { border: 1px solid @border@; }
QScrollArea, QScrollArea > QWidget > QWidget { background: transparent; border: none; }
QTableView, QTreeView, QListView {
  background: @surface@; alternate-background-color: @surface@; border: 1px solid @hairline@; border-radius: @radius@;
  gridline-color: @hairline@; selection-background-color: @selected@; selection-color: @text@; outline: none;
}
QTableView:focus, QTreeView:focus, QListView:focus { border: 2px solid @accent@; }
QTableView::item, QTreeView::item { padding: 0 5px; border: none; border-bottom: 1px solid @hairline@; }
QListView::item { padding: 0 8px; border: none; }
QTableView::item:selected, QTreeView::item:selected, QListView::item:selected {
  background: @selected@; color: @text@; }
QTableView::item:focus, QTreeView::item:focus { border: 1px solid @accent@; }
QTableView::item:disabled { color: @disabled@; }
QHeaderView { background: @surface@; border: none; }
QHeaderView::section { background: @surface@; color: @muted@; font-weight: 600; border: none;
  border-bottom: 1px solid @border@; padding: 4px 8px; }
QHeaderView::up-arrow { image: url("@up@"); width: 12px; height: 12px; }
QHeaderView::down-arrow { image: url("@down@"); width: 12px; height: 12px; }
QTableCornerButton::section { background: @surface@; border: none; }

QTabWidget::pane { border: none; }
QTabBar::tab { background: transparent; color: @muted@; padding: 6px 12px; border: 2px solid transparent;
  border-bottom: 2px solid transparent; }
QTabBar[tabRole="many"]::tab { padding: 6px 5px; }
QTabBar::tab:selected { color: @text@; font-weight: 600; border-bottom-color: @accent@; }
QTabBar::tab:focus { border-color: @accent@; }

QScrollBar:vertical { background: transparent; width: 12px; margin: 0; }
QScrollBar:horizontal { background: transparent; height: 12px; margin: 0; }
QScrollBar::handle { background: @border@; border-radius: 4px; margin: 2px; }
QScrollBar::handle:vertical { min-height: 28px; }
QScrollBar::handle:horizontal { min-width: 28px; }
QScrollBar::handle:hover { background: @muted@; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }

QSplitter::handle { background: @hairline@; }
QToolTip { background: @surface@; color: @text@; border: 1px solid @border@; padding: 6px 8px; font-size: @base@; }
QMenuBar { background: @window@; border-bottom: 1px solid @hairline@; padding: 2px 8px; }
QMenuBar::item { background: transparent; padding: 4px 8px; border-radius: 4px; }
QMenuBar::item:selected { background: @selected@; }
QMenu { background: @surface@; border: 1px solid @border@; padding: 4px; }
QMenu::item { padding: 5px 28px 5px 12px; border-radius: 4px; }
QMenu::item:selected { background: @selected@; }
QMenu::item:disabled { color: @disabled@; }
QMenu::separator { height: 1px; background: @hairline@; margin: 4px 8px; }
QMenu::icon { padding-left: 8px; }
QMenu::indicator { width: 14px; height: 14px; padding-left: 8px; }
QMenu::indicator:checked { image: url("@check_text@"); }
QMenu::right-arrow { image: url("@right@"); width: 12px; height: 12px; }
"""
