"""Exports for other tools: written, read back as those tools read them, with the same loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from demands import FABRICS, groups, permutation
from exported_formats import of_hccl, of_ports, of_segments
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import Fabric, leaf_spine, route
from gradwire_formats import hccl, nccl, srv6
from gradwire_formats import ports as source_ports

FABRIC = leaf_spine(4, 4, 3)
ADDRESSES = [f"10.0.{host // 4}.{host % 4 + 2}" for host in range(16)]


def ports(fabric: Fabric, each: int = 12) -> dict[tuple[int, int], dict[int, list[int]]]:
    """Returns ports for each path of each pair, as a probe may have found them."""
    pairs = [(a, b) for a in range(fabric.hosts) for b in range(fabric.hosts) if a != b]
    return {
        (a, b): {
            path: [61_000 + (a + b + path * each + i) % 4000 for i in range(each)]
            for path in range(len(fabric.uplinks) * max(fabric.cores, 1))
        }
        for a, b in pairs
    }


@given(st.sampled_from(FABRICS), st.sampled_from(["coloured", "min_split", "wrap", "ethereal"]))
def test_segments_read_back_carry_the_same(fabric: Fabric, scheme: str) -> None:
    routes = route(groups(fabric, 4, 3), fabric, scheme, 1)
    again = of_segments(srv6.write(routes), fabric, routes.flows)
    assert again.link_bytes() == routes.link_bytes()
    assert again.assignments == routes.assignments


def test_a_line_is_a_piece_and_its_segment() -> None:
    text = srv6.write(route([(0, 4, 100), (0, 1, 7)], leaf_spine(2, 4, 1)))
    assert text == "# flow from to bytes segments\n0 0 4 100 fc00:0:0::\n1 0 1 7 -\n"


def test_who_names_segments_says_how() -> None:
    name = "2001:db8:{:04x}::1".format
    routes = route(permutation(FABRIC, 1), FABRIC)
    text = srv6.write(routes, name)
    assert "2001:db8:0002::1" in text
    assert of_segments(text, FABRIC, routes.flows, name).link_bytes() == routes.link_bytes()


def test_sprayed_packets_have_no_segments() -> None:
    with pytest.raises(NetworkError, match="of pinned pieces; got sprayed packets"):
        srv6.write(route([(0, 4, 1)], FABRIC, "spray"))


@pytest.mark.parametrize("scheme", ["coloured", "ethereal", "min_split", "ecmp"])
def test_ports_read_back_carry_the_same(scheme: str) -> None:
    routes = route(permutation(FABRIC, 2), FABRIC, scheme, 1)
    known = ports(FABRIC)
    text = hccl.write(routes, ADDRESSES, known)
    first = text.splitlines()[0]
    pair, _, chosen = first.partition("=")
    assert set(pair.split(",")) <= set(ADDRESSES)
    assert all(61_000 <= int(port) < 65_000 for port in chosen.split(","))
    again = of_hccl(text, FABRIC, routes.flows, ADDRESSES, known)
    assert again.link_bytes() == routes.link_bytes()


@given(st.sampled_from(FABRICS), st.sampled_from(["coloured", "min_split", "wrap", "ethereal"]))
def test_pieces_bound_to_ports_carry_the_same(fabric: Fabric, scheme: str) -> None:
    known = ports(fabric, each=40)
    routes = route(groups(fabric, 4, 3), fabric, scheme, 1)
    again = of_ports(source_ports.write(routes, known), fabric, routes.flows, known)
    assert again.link_bytes() == routes.link_bytes()
    assert again.assignments == routes.assignments


def test_pieces_of_a_step_have_ports_of_their_own() -> None:
    known = {(0, 2): {0: [7, 8]}, (2, 0): {0: [9]}}
    fabric = leaf_spine(2, 2, 1)
    flows = [(0, 2, 5), (0, 2, 5), (2, 0, 5), (0, 1, 5), (0, 2, 5, 1)]
    text = source_ports.write(route(flows, fabric), known)
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["7", "8", "9", "-", "7"]
    with pytest.raises(NetworkError, match="0 to 2 needs 3 of path 0, and 2 are known"):
        source_ports.write(route([(0, 2, 5)] * 3, fabric), known)


@pytest.mark.parametrize("of_pair", [{"0": [7, 7]}, {"0": [6, 7], "1": [7]}])
def test_a_port_of_a_pair_takes_one_path(tmp_path: Path, of_pair: dict[str, list[int]]) -> None:
    file = tmp_path / "ports.json"
    file.write_text(json.dumps({"0,2": of_pair, "2,0": {"0": [7]}}))
    with pytest.raises(NetworkError, match="port of a pair once, as it takes one path; got 7"):
        source_ports.load(str(file))


def test_ports_beyond_the_limits_or_unknown_are_told() -> None:
    known = ports(FABRIC)
    uneven = route([(0, 4, 1009), (1, 5, 500)], FABRIC, "wrap", 3)
    with pytest.raises(NetworkError, match=r"at most 32 ports for a pair; .*Use 'coloured'"):
        hccl.write(uneven, ADDRESSES, known)
    cut = route(permutation(FABRIC, 2), FABRIC, "ethereal")
    with pytest.raises(NetworkError, match=r"needs 1 of path \d, and 0 are known. Probe more"):
        hccl.write(cut, ADDRESSES, ports(FABRIC, 0))
    assert hccl.write(route([(0, 1, 5)], FABRIC), ADDRESSES, known) == ""


def test_the_environment_says_how_many_queue_pairs() -> None:
    flows = permutation(FABRIC, 2, 6 << 20)
    whole, cut = (nccl.write(route(flows, FABRIC, scheme)) for scheme in ("coloured", "ethereal"))
    assert "NCCL_IB_QPS_PER_CONNECTION=1\n" in whole
    assert "NCCL_IB_SPLIT_DATA_ON_QPS=0\n" in whole
    assert "NCCL_IB_QPS_PER_CONNECTION=3\n" in cut
    assert "NCCL_IB_SPLIT_DATA_ON_QPS=1\n" in cut
    assert f"smallest piece has {2 << 20} bytes" in cut
    assert "pin no path" in whole
    assert "QPS_PER_CONNECTION=1\n" in nccl.write(route([(0, 1, 5)], FABRIC))
