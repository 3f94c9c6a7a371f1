"""Routes as a file: equal when read back, refused when they are impossible."""

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


def test_starts_are_saved_and_files_from_before_them_are_read() -> None:
    routes = route([(0, 2, 5, 0, 70), (1, 3, 5)], leaf_spine(2, 2, 2))
    text = to_json(routes)
    assert from_json(text).flows == routes.flows
    old = json.loads(text)
    del old["flows"]["start_ns"]
    assert from_json(json.dumps(old)).flows.start_ns.tolist() == [0, 0]


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
        at = at[int(name) if isinstance(at, list) else name]
    if value is None:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", 2, "format 1 in this version of gradwire; got 2"),
        ("pieces", None, "got no 'pieces'"),
        ("unit", "one", "unit must be a whole number"),
        ("pieces.amount.0", 1, r"flows\.bytes\[\d+\] must be the sum of its pieces"),
        ("pieces.amount.0", 1.5, r"pieces\.amount\[0\] must be a whole number"),
        ("pieces.path.0", 7, "must be a path between its leaves, or -1 .*; got 7"),
        (
            "pieces.path.0",
            -1,
            r"path\[0\] must be a path .*, or -1 for a flow below one leaf",
        ),
        ("pieces.flow.0", 99, r"pieces\.flow\[0\] must be one of 12 flows; got 99"),
        ("flows.src.0", 99, r"flows\.src\[0\] must be one of 4 hosts; got 99"),
        ("topology.plane_of", [0, 10**9], r"topology\.plane_of\[1\] must be one of 1 ports"),
        ("topology.leaf_of.0", -1, r"topology\.leaf_of\[0\] must be a whole number, 0 to"),
        ("topology.host_up", [[1, 1]] * 4, "host_down must have 2 ports for each of 4 hosts"),
        ("topology.host_down", [[1]] * 3, "host_down must have 1 ports for each of 4 hosts"),
        (
            "topology.host_up.0.0",
            0,
            r"host_up\[0\]\[0\] must be above 0 where a port .* got 0",
        ),
        ("topology.rates.0", -1, r"topology\.rates\[0\] must be a whole number, 0 to"),
        ("topology.cores", 1 << 62, "rates must have one rate for each of"),
        ("topology.pod_of", [0, 1], "cores must be 1 or more, because there are several pods"),
        ("flows.bytes.0", 1 << 62, r"flows\.bytes\[0\] must be a whole number, 1 to"),
        ("unit", -1, "unit must be a whole number, 1 or more; got -1"),
        ("pieces.amount.0", -5, r"pieces\.amount\[0\] must be a whole number, 0 or more; got -5"),
        ("topology.rates", [1, 2], "rates must have one rate for each of 8 links; got 2 rates"),
        ("topology.rates", [0] * 8, "must not use a link of rate 0"),
        (
            "topology.leaf_of",
            [0, 0, 1, 5],
            r"leaf_of\[3\] must be one of 2 leaves; got 5",
        ),
    ],
)
def test_documents_that_cannot_be_are_refused(path: str, value: object, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        from_json(changed(path, value))


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(NetworkError, match="a document of routes must be"):
        from_json(text)


def test_columns_are_equally_long() -> None:
    data = document()
    data["pieces"]["path"].append(0)
    with pytest.raises(NetworkError, match="pieces must have the same number of each"):
        from_json(json.dumps(data))
    assert np.array(document()["pieces"]["path"]).max() < 2


def test_a_huge_unit_of_no_flows_is_one() -> None:
    text = to_json(route([], leaf_spine(2, 2, 2))).replace('"unit": 1', f'"unit": {2**70}')
    assert f'"unit": {2**70}' in text
    assert from_json(text).unit == 2**70
