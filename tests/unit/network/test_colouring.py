"""Equitable colourings: every vertex and group has each colour equally often."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.extension import VARIABLE
from gradwire.network.colouring import Side, colour, colour_twin
from gradwire.network.native import core

NATIVE = pytest.mark.skipif(core() is None, reason="needs the extension")


def seen(vertex: NDArray[np.integer], found: NDArray[np.int32], colours: int) -> NDArray[np.int64]:
    """Counts how often each vertex has each colour."""
    counts = np.zeros((int(vertex.max()) + 1, colours), np.int64)
    np.add.at(counts, (vertex, found), 1)
    return counts


def is_equitable(vertex: NDArray[np.integer], found: NDArray[np.int32], colours: int) -> bool:
    counts = seen(vertex, found, colours)
    low = counts.sum(1, keepdims=True) // colours
    return bool(((counts == low) | (counts == low + 1)).all())


def graph(edges: int, left: int, right: int, seed: int) -> tuple[Side, Side]:
    dice = np.random.default_rng(seed)
    return (
        Side.alone(np.append(dice.integers(0, left, edges - 1), left - 1)),
        Side.alone(np.append(dice.integers(0, right, edges - 1), right - 1)),
    )


GRAPHS = st.tuples(
    st.integers(1, 400), st.integers(1, 30), st.integers(1, 30), st.integers(0, 10_000)
)


@given(GRAPHS, st.integers(1, 20))
def test_each_vertex_sees_each_colour_equally_often(
    given_graph: tuple[int, int, int, int], colours: int
) -> None:
    left, right = graph(*given_graph)
    found = colour(left, right, colours)
    assert is_equitable(left.vertex, found, colours)
    assert is_equitable(right.vertex, found, colours)


@given(GRAPHS, st.integers(1, 9))
def test_the_twin_colours_as_well(given_graph: tuple[int, int, int, int], colours: int) -> None:
    left, right = graph(*given_graph)
    found = colour_twin(left.vertex, right.vertex, colours)
    assert is_equitable(left.vertex, found, colours)
    assert is_equitable(right.vertex, found, colours)


@NATIVE
@given(GRAPHS, st.integers(0, 4), st.integers(1, 6))
def test_groups_see_powers_of_two_equally_often(
    given_graph: tuple[int, int, int, int], power: int, of_a_group: int
) -> None:
    """With a power of two of colours, leaves and their pods are equitable at the same time."""
    left, right = (
        Side.of(side.vertex, np.arange(len(side.group)) // of_a_group)
        for side in graph(*given_graph)
    )
    found = colour(left, right, 2**power)
    for side in (left, right):
        assert is_equitable(side.vertex, found, 2**power)
        assert is_equitable(side.group[side.vertex], found, 2**power)


@NATIVE
@pytest.mark.parametrize("colours", [1, 2, 3, 7, 12, 63, 64])
def test_a_permutation_of_many_hosts(colours: int) -> None:
    dice = np.random.default_rng(colours)
    leaf = np.arange(4096) // 64
    left, right = Side.alone(leaf), Side.alone(leaf[dice.permutation(4096)])
    found = colour(left, right, colours)
    assert is_equitable(left.vertex, found, colours)
    assert is_equitable(right.vertex, found, colours)
    assert len(np.unique(found)) == colours


def test_the_same_seed_gives_the_same_colours() -> None:
    left, right = graph(300, 7, 9, 1)
    same = [colour(left, right, 5, seed=3) for _ in range(2)]
    assert (same[0] == same[1]).all()


@NATIVE
def test_seeds_choose_among_equitable_colourings() -> None:
    left, right = graph(300, 7, 9, 1)
    assert len({colour(left, right, 5, seed=s).tobytes() for s in range(4)}) > 1


def test_no_edges_have_no_colours() -> None:
    nothing = Side.alone([])
    assert len(colour(nothing, nothing, 4)) == 0


def test_one_edge_for_each_colour_between_two_vertices() -> None:
    found = colour(Side.alone([0] * 6), Side.alone([0] * 6), 6)
    assert sorted(found.tolist()) == [0, 1, 2, 3, 4, 5]


def test_without_the_extension_the_twin_colours() -> None:
    script = (
        "from gradwire.network.colouring import Side, colour\n"
        "import sys\n"
        "assert sorted(colour(Side.alone([0, 0]), Side.alone([0, 0]), 2).tolist()) == [0, 1]\n"
        "assert 'torch' not in sys.modules and 'gradwire._native' not in sys.modules\n"
    )
    environment = {**os.environ, VARIABLE: "twin"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize(
    ("left", "right", "colours", "said"),
    [
        ([0], [0], 0, "colours is a whole number of at least 1; got 0"),
        ([0], [0], -3, "colours .* got -3"),
        ([0], [0], 1.5, "colours .* got 1.5"),
        ([0], [0], 1 << 31, "at most 268435456 edges.* below 2\\^31"),
        ([0], [0], (1 << 31) - 1, "1 edges at 1 vertices with 2147483647 colours take 2147483648"),
        ([0, 1], [0], 2, "the same length; got 2 of left, 1 of right"),
        ([0, -1], [0, 0], 2, "vertices must be whole numbers from 0 .* number 1 is -1"),
        ([1 << 62], [0], 2, "vertices .* number 0 is 4611686018427387904"),
        ([math.nan], [0], 2, "vertices must be one row of whole numbers .*; got float64"),
        ([[0], [0]], [0, 0], 2, "got int64 of shape \\(2, 1\\)"),
        (Side(np.array([0, 5], np.int32), np.array([0], np.int32)), [0, 0], 2, "number 1 is 5"),
        (Side(np.array([0], np.int32), np.array([1 << 30])), [0], 2, "groups .* 1073741824"),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(
    left: Any, right: Any, colours: Any, said: str, twin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin:
        monkeypatch.setenv(VARIABLE, "twin")
    with pytest.raises(NetworkError, match=said):
        colour(left if isinstance(left, Side) else Side.alone(left), Side.alone(right), colours)


def test_numbers_of_any_kind_and_step_are_read() -> None:
    """Strided small integers are read; with a billion colours a vertex has each at most once."""
    own = np.array([0, 9, 0, 9, 1, 9], np.uint8)[::2]
    found = colour(Side.alone(own), Side.alone(own), 1 << 30)
    assert found[0] != found[1]
