"""PNGs as an independent decoder reads them, and SVGs that are well-formed and show what they should."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from color_science import VISIONS, ciede2000, contrast, lab
from read_png import read_png

from core.inspect.figures import (
    NOT_A_NUMBER,
    SHADES,
    Curve,
    Mark,
    cells,
    distribution,
    ends,
    heat_map,
    indices,
    number,
    palette,
    png,
    profile,
)
from core.inspect.report_html import _STYLE


def test_png_has_the_colours() -> None:
    values = np.random.default_rng(1).integers(0, 256, (7, 13)).astype(np.uint8)
    np.testing.assert_array_equal(read_png(png(values)), palette()[values])


def test_png_opens_elsewhere(tmp_path) -> None:
    gui = pytest.importorskip("PySide6.QtGui")
    values = np.arange(256, dtype=np.uint8).reshape(8, 32)
    image = gui.QImage.fromData(png(values))
    assert (image.width(), image.height()) == (32, 8)
    color = image.pixelColor(5, 3)
    assert [color.red(), color.green(), color.blue()] == palette()[values[3, 5]].tolist()


def test_an_outlier_is_the_brightest_pixel_and_nan_is_no_number() -> None:
    values = np.full((20, 30), 0.01, np.float32)
    values[4, 17], values[6, 2], values[9, 9] = 5.0, np.nan, 0.0
    found = heat_map(values, quantile=0.01)
    picture = read_png(found.png)
    assert picture[4, 17].tolist() == palette()[SHADES - 1].tolist()
    assert picture[6, 2].tolist() == list(NOT_A_NUMBER)
    assert picture[9, 9].tolist() == palette()[0].tolist()
    assert (found.low, found.high) == (pytest.approx(0.01), 5.0)


def test_shades_are_even_in_the_logarithm() -> None:
    assert indices(np.array([1e-3, 1e-2, 1e-1, 1.0, 50.0, 1e-9]), 1e-3, 1.0).tolist() == [0, 85, 169, 254, 254, 0]
    assert indices(np.array([0.0, 5.0, 10.0]), 0.0, 10.0, log=False).tolist() == [0, 127, 254]
    assert ends(np.array([np.nan, np.inf, 0.0])) == (0, 0)
    assert heat_map(np.zeros((2, 2))).high == 0  # nothing above zero: all dark
    assert heat_map(np.full((2, 2), 3.0)).low == 3


def test_colours_keep_their_order_for_every_vision() -> None:
    shades = ["#" + "".join(f"{c:02x}" for c in color) for color in palette()[:SHADES:16]]
    for vision in VISIONS:
        light = [lab(c, vision)[0] for c in shades]
        assert all(a < b for a, b in pairwise(light)), vision
        assert min(ciede2000(lab(a, vision), lab(b, vision)) for a, b in pairwise(shades)) > 2


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_readable(dark: bool) -> None:
    first, second = _STYLE.split("@media")
    colors = dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", second if dark else first))
    colors = {k: v if len(v) == 7 else "#" + "".join(c * 2 for c in v[1:]) for k, v in colors.items()}
    for name in ("fg", "muted", "bad", "s0"):
        assert contrast(colors[name], colors["bg"]) >= 4.5, name
    for name in ("s0", "s1", "s2", "s3"):
        assert contrast(colors[name], colors["bg"]) >= 3, name
    for vision in VISIONS:
        curves = [lab(colors[name], vision) for name in ("s0", "s1", "s2")]
        assert min(ciede2000(a, b) for i, a in enumerate(curves) for b in curves[:i]) > 10, vision


def parsed(text: str) -> ET.Element:
    root = ET.fromstring(f"<div>{text}</div>")
    svg = root[0]
    assert svg.get("role") == "img"
    assert svg.get("aria-label")
    return svg


NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_profile_never_loses_its_outlier() -> None:
    values = np.full(5000, 0.1)
    values[3210] = 40
    svg = parsed(
        profile("a < b", [Curve("largest", values, 1), Curve("RMS", values / 3, 0)], [Mark(3210, 40, "it & so")])
    )
    lines = svg.findall(f".//{NAMESPACE}polyline")
    assert len(lines) == 2
    points = [tuple(map(float, p.split(","))) for p in lines[0].get("points").split()]
    assert 400 < len(points) <= 900
    top = min(points, key=lambda p: p[1])
    circle = svg.find(f".//{NAMESPACE}circle")
    assert float(circle.get("cx")) == pytest.approx(top[0], abs=1)
    assert float(circle.get("cy")) == pytest.approx(top[1], abs=0.2)
    assert "nothing above zero" in profile("empty", [Curve("largest", np.zeros(4), 0)])
    parsed(profile("one", [Curve("largest", np.array([2.0]), 0)]))


def test_a_distribution_has_its_levels() -> None:
    edges = 2.0 ** np.arange(-10, 11)
    counts = np.zeros(20, np.int64)
    counts[5:12] = [3, 20, 500, 10_000, 900, 4, 1]
    svg = parsed(distribution("values", edges, counts, np.array([0.1, 0.5, 1e9]), np.array([True, False, True])))
    assert len(svg.findall(f".//{NAMESPACE}rect")) == 7
    titles = [t.text for t in svg.iter(f"{NAMESPACE}title")]
    assert "level 0.1" in titles
    assert "level 0.5, not used" in titles
    assert not any("10^9" in (t or "") for t in titles)  # outside of the values
    assert "nothing above zero" in distribution("none", edges, counts * 0, np.zeros(0), np.zeros(0, bool))


def test_cells_are_named_and_the_worst_is_bright() -> None:
    values = np.array([[np.inf, np.nan], [12.0, 50.0]])
    svg = parsed(cells("map", ["0", "1"], ["q & k", "v"], values, log=False, falling=True, unit="dB"))
    found = {r[0].text: r.get("fill") for r in svg.iter(f"{NAMESPACE}rect")}
    assert set(found) == {"0, q & k: ∞ dB", "1, q & k: 12 dB", "1, v: 50 dB"}
    brightest = "#" + "".join(f"{c:02x}" for c in palette()[SHADES - 1])
    assert found["1, q & k: 12 dB"] == brightest
    assert found["0, q & k: ∞ dB"] == found["1, v: 50 dB"] == "#" + "".join(f"{c:02x}" for c in palette()[0])


def test_numbers_are_short() -> None:
    values = (0.0, 12.345, -0.00123, 1e-9, 2.5e12, 2412.7, 999_999.0, float("nan"), float("-inf"))
    texts = ("0", "12.3", "−0.00123", "10⁻⁹", "2.5·10¹²", "2\u202f410", "10⁶", "–", "−∞")
    assert tuple(map(number, values)) == texts
