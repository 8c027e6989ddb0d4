"""Colours of magnitudes, for the window and for pages."""

from __future__ import annotations

import numpy as np

# viridis (van der Walt and Smith 2015, CC0): 17 colours at even distances, in between linear in sRGB, which is within 7
# of 255 of the published table.
VIRIDIS = (
    "440154 48186A 472D7B 424086 3B528B 33638D 2C728E 26828E 21918C 1F9F88 27AD81 3DBC74 5CC863 81D34D "
    "AADC32 D5E21A FDE725"
)


def shades(anchors: str, count: int) -> np.ndarray:
    """uint8 [count, 3], from the first of these colours in hexadecimal to the last."""
    colors = np.array([[int(a[i : i + 2], 16) for i in (0, 2, 4)] for a in anchors.split()], float)
    places = np.linspace(0, len(colors) - 1, count)
    table = np.stack([np.interp(places, np.arange(len(colors)), colors[:, c]) for c in range(3)], axis=1)
    return np.rint(table).astype(np.uint8)
