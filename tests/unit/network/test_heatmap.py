"""The picture of loads: a cell for every link, darkest where it is fullest."""

from __future__ import annotations

from xml.etree import ElementTree

from demands import groups, permutation

from gradwire.network import leaf_spine, route
from gradwire.network.heatmap import heatmap

SVG = "{http://www.w3.org/2000/svg}"


def cells(svg: str) -> list[tuple[str, str]]:
    """The title and the opacity of each cell; the opacity shows how full the link is."""
    root = ElementTree.fromstring(svg)
    found = [
        (rect.find(f"{SVG}title"), rect.get("fill-opacity")) for rect in root.iter(f"{SVG}rect")
    ]
    return [(str(title.text), str(fill)) for title, fill in found if title is not None]


def test_every_link_is_a_cell() -> None:
    fabric = leaf_spine(4, 4, 3)
    drawn = cells(heatmap({"spray": route(groups(fabric, 4, 1), fabric, "spray")}))
    assert len(drawn) == 2 * 4 * 3
    assert {name.split(":")[0] for name, _ in drawn} == {
        f"leaf {leaf}, uplink {j}, {way}"
        for leaf in range(4) for j in range(3) for way in ("up", "down")
    }  # fmt: skip


def test_the_fullest_is_black_and_what_is_idle_is_faint() -> None:
    fabric = leaf_spine(2, 2, 2)
    drawn = dict(cells(heatmap({"one": route([(0, 2, 10**9)], fabric, "coloured")})))
    colours = sorted(drawn.values())
    assert colours.count("1") == 2
    assert colours.count("0.05") == 6
    black = [name for name, colour in drawn.items() if colour == "1"]
    assert all(name.endswith(": 80 ms") for name in black)


def test_schemes_have_one_scale() -> None:
    fabric = leaf_spine(8, 8, 8)
    flows = permutation(fabric, 1)
    svg = heatmap({name: route(flows, fabric, name, 2) for name in ("ecmp", "coloured")})
    drawn = cells(svg)
    half = len(drawn) // 2
    assert "1" in {colour for _, colour in drawn[:half]}
    assert "1" not in {colour for _, colour in drawn[half:]}
    assert svg.count("<text") == 2 * 3


def test_of_many_leaves_the_fullest_are_drawn() -> None:
    fabric = leaf_spine(100, 1, 2)
    drawn = cells(heatmap({"one": route([(99, 0, 5000)], fabric)}))
    assert len(drawn) == 2 * 64 * 2
    assert any(name.startswith("leaf 99, ") for name, _ in drawn)


def test_nothing_is_drawn_faintly() -> None:
    fabric = leaf_spine(2, 2, 2)
    assert {colour for _, colour in cells(heatmap({"none": route([], fabric)}))} == {"0.05"}
