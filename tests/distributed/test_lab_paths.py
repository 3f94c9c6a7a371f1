"""Leaves and spines in the kernel: pinned transfers stay on their paths, hashed ones take those
that the kernel's own look-up names, and links count the bytes."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradwire.cli.main import main
from gradwire.errors import LabError
from gradwire.lab import Cluster, Connection, available
from gradwire.network import Flows, Link, leaf_spine, route

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(available().mode == "none", reason=available().reason),
]
TRANSFERS = Path(__file__).parents[2] / "benchmarks" / "network" / "transfers.py"
_ours = SimpleNamespace(**runpy.run_path(str(TRANSFERS)))
Transfer, hashed, pinned, transfer = _ours.Transfer, _ours.hashed, _ours.pinned, _ours.transfer
TOPOLOGY = leaf_spine(leaves=2, hosts=3, spines=3)
ACROSS = Flows([0, 1, 2, 3, 4, 5], [3, 4, 5, 1, 2, 0], 400_000)
MORE = 65_000
"""Bytes beyond the transfers': headers, acknowledgements, what a loaded machine sends again. Half
of the smallest piece, so that a piece on the wrong link is seen."""


@pytest.fixture(scope="module")
def lab():
    with Cluster(topology=TOPOLOGY, rate="500mbit", hash_seed=7, order=[4, 2, 0, 1, 5, 3]) as it:
        yield it


def between_switches(carried: dict[Link, int]) -> dict[Link, int]:
    return {link: n for link, n in carried.items() if "host" not in link[0] + link[1]}


def large(carried: dict[Link, int]) -> dict[Link, int]:
    """Links between switches that carried more than acknowledgements and neighbour discovery."""
    return {link: n for link, n in between_switches(carried).items() if n > 100_000}


@pytest.mark.parametrize("scheme", ["coloured", "min_split", "ethereal", "wrap"])
def test_links_carry_what_the_plan_says(lab, scheme):
    routes = route(ACROSS, TOPOLOGY, scheme)
    carried = transfer(lab, pinned(routes)).link_bytes
    for link, expected in routes.link_bytes().items():
        assert expected <= carried[link] < expected + MORE, link
    assert set(between_switches(carried)) == set(TOPOLOGY.links)


def test_all_of_a_plane_goes_by_its_spine_and_comes_back_by_it(lab):
    for plane in range(3):
        done = transfer(lab, [Transfer(Connection(0, 4, 20_000, 20_001), 300_000, plane)])
        own = {Link("leaf0", f"spine{plane}"), Link(f"spine{plane}", "leaf1")}
        assert set(large(done.link_bytes)) == own
        rest = {link: n for link, n in between_switches(done.link_bytes).items() if n > 1000}
        assert {name for link in rest for name in link[:2]} == {f"spine{plane}", "leaf0", "leaf1"}
        assert done.seconds > 0


def test_hashed_connections_take_the_path_that_was_looked_up(lab):
    draw = np.random.default_rng(3)
    tried = [
        Connection(int(a), int(a + 3) % 6, int(port), 21_000 + i)
        for i, (a, port) in enumerate(draw.integers([0, 20_000], [6, 60_000], (8, 2)))
    ]
    looked_up = lab.paths(tried)
    for one, path in zip(tried, looked_up):
        source = f"leaf{TOPOLOGY.leaf_of[one.source]}"
        up = {link for link in large(transfer(lab, [Transfer(one, 200_000)]).link_bytes)
              if link.source == source}  # fmt: skip
        assert up == {Link(source, f"spine{path}")}


def test_ports_spread_over_all_spines_and_below_a_leaf_is_no_path(lab):
    paths = lab.paths([Connection(0, 3, port, 80) for port in range(20_000, 20_300)])
    assert set(paths) == {0, 1, 2}
    assert min(Counter(paths).values()) > 60
    assert lab.paths([Connection(0, 1, 20_000, 80)]) == [-1]
    assert lab.paths([]) == []
    assert len(lab.paths([Connection(0, 3, port, 80) for port in range(20_000, 22_500)])) == 2500


def test_the_same_seed_gives_the_same_paths_and_another_one_others(lab):
    tried = [Connection(0, 3, port, 80) for port in range(20_000, 20_100)]
    with Cluster(topology=TOPOLOGY, rate="500mbit", hash_seed=7) as same:
        assert same.paths(tried) == lab.paths(tried)
    with Cluster(topology=TOPOLOGY, rate="500mbit", hash_seed=8) as other:
        assert other.paths(tried) != lab.paths(tried)


def test_hashed_transfers_arrive_and_are_counted(lab):
    transfers = hashed(ACROSS, seed=1, pieces=3)
    assert sum(t.bytes for t in transfers) == 6 * 400_000
    expected = Counter[tuple[str, str]]()
    for (one, size, _), path in zip(transfers, lab.paths([t.connection for t in transfers])):
        expected[f"leaf{TOPOLOGY.leaf_of[one.source]}", f"spine{path}"] += size
    carried = transfer(lab, transfers).link_bytes
    for (leaf, spine), size in expected.items():
        assert size < carried[Link(leaf, spine)] < size + MORE


def test_ranks_are_placed_in_the_order_asked_for(lab):
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    seen: dict[int, dict[str, str]] = {}
    lab.run([sys.executable, "-c", program],
            on_line=lambda rank, stream, line: seen.update({rank: json.loads(line)}))  # fmt: skip
    assert [seen[rank]["GRADWIRE_HOST"] for rank in range(6)] == list("420153")
    assert [seen[rank]["GROUP_RANK"] for rank in range(6)] == list("012345")
    assert seen[0]["GRADWIRE_PLANES"] == "10.128.1.2,10.129.1.2,10.130.1.2"
    assert {own["MASTER_ADDR"] for own in seen.values()} == {lab.address(4)} == {"10.77.1.2"}


def test_around_a_failed_cable():
    failed = TOPOLOGY.without(Link("leaf0", "spine1"), Link("spine1", "leaf0"))
    with Cluster(topology=failed, rate="500mbit") as lab:
        assert set(lab.paths([Connection(3, 0, p, 80) for p in range(20_000, 20_100)])) == {0, 2}
        routes = route(ACROSS, failed, "wrap")
        carried = transfer(lab, pinned(routes)).link_bytes
        assert not any("spine1" in link[0] + link[1] for link in carried if "leaf0" in link)
        with pytest.raises(LabError, match="are all planes' links there"):
            transfer(lab, [Transfer(Connection(0, 3, 20_000, 20_000), 1000, plane=1)])


def test_what_cannot_be_asked(lab):
    with pytest.raises(LabError, match=r"packets are spread over all\. Choose a scheme"):
        pinned(route(ACROSS, TOPOLOGY, "spray"))
    with pytest.raises(LabError, match="got host 6, plane None"):
        lab.address(6)
    for plane in (3, -1):
        with pytest.raises(LabError, match=f"got host 0, plane {plane}"):
            lab.address(0, plane)
    with pytest.raises(LabError, match="got host -1"):
        lab.address(-1)
    with pytest.raises(LabError, match="got host 9"):
        lab.paths([Connection(9, 0, 1, 1)])
    with (
        Cluster(2, "1gbit", procs_per_host=2) as flat,
        pytest.raises(LabError, match="this cluster has one switch"),
    ):
        flat.paths([Connection(0, 1, 1, 1)])
    with pytest.raises(LabError, match="got host 0, plane 0"):
        Cluster(2, "1gbit").address(0, 0)
    with (
        Cluster(2, "1gbit", loopback=True) as lo,
        pytest.raises(LabError, match="without namespaces there are no interfaces"),
    ):
        lo.link_bytes()
    with pytest.raises(LabError, match="is not entered"):
        Cluster(topology=TOPOLOGY).link_bytes()


def test_one_switch_counts_its_links_too():
    with Cluster(2, "1gbit") as flat:
        done = transfer(flat, hashed(Flows([0], [1], 500_000), seed=0))
        assert 500_000 < done.link_bytes[Link("host0", "switch")] < 500_000 + MORE
        assert 500_000 < done.link_bytes[Link("switch", "host1")] < 500_000 + MORE
    assert done.seconds >= 500_000 * 8 / 1e9 * 0.7  # a burst lets the rest through at once


def test_the_command_tells_what_links_carried(capsys):
    words = ["--topology", "leaf_spine(leaves=2, hosts=1, spines=2)", "--rate", "1gbit"]
    assert main(["lab", "run", *words, "--json", "--", "true"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["hosts"] == 2
    assert {(link["from"], link["to"]) for link in said["links"]} >= {
        ("leaf0", "spine1"), ("spine1", "leaf1"), ("host0", "leaf0"),
    }  # fmt: skip


def test_the_command_shuffles_ranks(capsys):
    words = ["--hosts", "4", "--placement", "shuffled", "--seed", "3", "--loopback"]
    assert main(["lab", "run", *words, "--", "sh", "-c", "echo $GRADWIRE_HOST"]) == 0
    said = sorted(capsys.readouterr().out.split("\n"))
    assert [line[-1:] for line in said if line] != list("0123")
    assert sorted(line[-1:] for line in said if line) == list("0123")


def test_the_folder_of_tasks_is_gone(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    transfer(lab, hashed(ACROSS, seed=2))
    assert os.listdir(tmp_path) == []
