"""Routes as a file: the same when read back, refused where they cannot be."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from demands import FABRICS, groups, unequal
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import Fabric, dual_plane, leaf_spine, route
from gradwire.network.saved import from_json, to_json


@given(
    st.sampled_from([*FABRICS, dual_plane(2, 3, 2)]), st.integers(0, 50),
    st.sampled_from(["coloured", "min_split", "ethereal", "spray", "ecmp_k(3)"]),
)  # fmt: skip
def test_read_back_every_link_carries_the_same(fabric: Fabric, seed: int, scheme: str) -> None:
    routes = route(groups(fabric, 3, seed), fabric, scheme, seed)
    again = from_json(to_json(routes))
    assert again.link_bytes() == routes.link_bytes()
    assert again.assignments == routes.assignments
    assert (again.seconds, again.splits) == (routes.seconds, routes.splits)
    assert to_json(again) == to_json(routes)


def test_amounts_beyond_64_bits_are_kept() -> None:
    fabric = leaf_spine(2, 2, 7)
    routes = route([(0, 2, 2**61), (1, 3, 2**61 - 1)], fabric, "wrap")
    assert routes.amount.dtype == object
    assert from_json(to_json(routes)).link_bytes() == routes.link_bytes()


def test_no_flows_are_saved_too() -> None:
    assert from_json(to_json(route([], leaf_spine(2, 2, 2)))).pieces == 0


def document() -> dict[str, Any]:
    fabric = leaf_spine(2, 2, 2)
    made: dict[str, Any] = json.loads(
        to_json(route(unequal(groups(fabric, 4, 1), 2), fabric, "lpt"))
    )
    return made


def changed(path: str, value: object) -> str:
    data = document()
    *names, last = path.split(".")
    at: Any = data
    for name in names:
        at = at[name]
    if value is None:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", 2, "the format is 2"),
        ("pieces", None, "KeyError: 'pieces'"),
        ("unit", "one", "ValueError"),
        ("pieces.amount.0", 1, r"pieces of flow \d+ are not its"),
        ("pieces.amount.0", 1.5, "amounts of pieces are whole numbers"),
        ("pieces.path.0", 7, "a path that is not there"),
        ("pieces.path.0", -1, "stay below their leaf"),
        ("pieces.flow.0", 99, "pieces are of flows 0 to 11"),
        ("flows.src.0", 99, "hosts are numbered from 0 to 3; a flow names 99"),
        ("topology.rates", [1, 2], "8 links and 2 rates"),
        ("topology.rates", [0] * 8, "a link of rate 0"),
        ("topology.leaf_of", [0, 0, 1, 5], "leaf_of of a fabric are .* number 3 is 5"),
    ],
)
def test_documents_that_cannot_be_are_refused(path: str, value: object, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        from_json(changed(path, value))


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(NetworkError, match="saved routes are a JSON document of format 1"):
        from_json(text)


def test_columns_are_equally_long() -> None:
    data = document()
    data["pieces"]["path"].append(0)
    with pytest.raises(NetworkError, match="not equally long"):
        from_json(json.dumps(data))
    assert np.array(document()["pieces"]["path"]).max() < 2
