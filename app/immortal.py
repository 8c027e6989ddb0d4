"""Keeps a fault of PySide6 6.12 from ending the program on Python 3.11.

PySide6 6.12.0 is built for interpreters whose None, True and False can not be freed (Python 3.12 on, PEP 683). On
Python 3.11 each call of a Qt function without a result gives back a None it does not own; after some ten thousand
calls the interpreter aborts with "deallocating None". PySide6 6.11 does not do this. Counting these few objects far up
once, before Qt is used, is what Python 3.12 does itself. tests/app/test_immortal.py shows the fault and the cure.
"""

from __future__ import annotations

import ctypes
import sys

FAR = 1 << 40  # a million calls a second for twelve days


def keep_singletons() -> None:
    """Make the interpreter's single objects outlast any miscount. Does nothing from Python 3.12 on."""
    if sys.version_info >= (3, 12) or sys.implementation.name != "cpython":
        return
    for single in (None, True, False, NotImplemented, Ellipsis):
        count = ctypes.c_ssize_t.from_address(id(single))  # the count is an object's first field
        known = sys.getrefcount(single)
        if count.value < FAR and abs(count.value - known) <= 64:  # else this build lays out objects in another way
            count.value += FAR
