"""Topologies of ns-3 and InfraGraph: read rightly, or refused with the line or the place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import test_documents as documents
import yaml
from demands import same

from gradwire.errors import NetworkError
from gradwire.network import leaf_spine
from gradwire_formats import infragraph, ns3

# -- ns-3 ----------------------------------------------------------------------------------

PLAIN = """6 3 6
4 5 6

0 4 100Gbps 0.001ms 0
1 4 100Gbps 0.001ms 0
2 5 100Gbps 0.001ms 0
3 5 0.1Tbps 0.001ms 0
4 6 400Gbps 0.001ms 0
5 6 400000Mbps 0.001ms 0
"""


def test_ns3_texts_name_nodes_switches_and_links() -> None:
    text = PLAIN.replace("6 3 6", "7 3 6")
    assert same(ns3.topology(text), leaf_spine(2, 2, 1, host_gbps=100, fabric_gbps=400))


@pytest.mark.parametrize(
    ("rate", "bits"),
    [
        ("100Gbps", 100 * 10**9), ("12.5GBps", 100 * 10**9), ("5.Mb/s", 5 * 10**6),
        (".5MB/s", 4 * 10**6), ("800bps", 800), ("2Kib/s", 2048), ("1MiB/s", 8 << 20),
    ],
)  # fmt: skip
def test_ns3_rates_are_in_bits_or_bytes(rate: str, bits: int) -> None:
    text = PLAIN.replace("6 3 6", "7 3 6").replace("0 4 100Gbps", f"0 4 {rate}")
    assert ns3.topology(text).host_up[0, 0] == bits


def test_simai_texts_have_nvswitches_inside_machines() -> None:
    text = """8 2 2 3 12 H100
4 5 6 7 8
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 5 2880Gbps 0.000025ms 0
3 5 2880Gbps 0.000025ms 0
0 6 200Gbps 0.0005ms 0
1 6 200Gbps 0.0005ms 0
2 7 200Gbps 0.0005ms 0
3 7 200Gbps 0.0005ms 0
6 8 400Gbps 0.0005ms 0
7 8 400Gbps 0.0005ms 0
6 8 400Gbps 0.0005ms 0
7 8 400Gbps 0.0005ms 0
""".replace("8 2 2 3 12", "9 2 2 3 12")
    expected = leaf_spine(2, 2, 1, host_gbps=200, fabric_gbps=400, parallel=2)
    assert same(ns3.topology(text), expected)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("100Gbps", "1.2.3Gbps", "word 3 is a rate, '100Gbps' for example; line 4"),
        ("100Gbps", "100GBPS", "word 3 is a rate, '100Gbps' for example; line 4"),
        ("7 3 6", "² 3 6", "word 1 is a whole number; line 1"),
        ("7 3 6", f"{'7' * 5000} 3 6", "word 1 is a whole number; line 1"),
        ("7 3 6", "7 3", "word 3 is a whole number; line 1 is '7 3'"),
        ("4 5 6\n", "4 5\n", "3 switches are named; line 2 is '4 5'"),
        ("0 4 100Gbps", "0 4 fast", "word 3 is a rate, .*; line 4"),
        ("0 4 100Gbps", "0 9 100Gbps", "nodes are numbered from 0 to 6; line 4"),
        ("7 3 6", "7 3 8", "there are 8 links; got 6"),
    ],
)
def test_ns3_texts_that_cannot_be_are_refused(old: str, new: str, said: str) -> None:
    text = PLAIN.replace("6 3 6", "7 3 6")
    with pytest.raises(NetworkError, match=said):
        ns3.topology(text.replace(old, new, 1))
    with pytest.raises(NetworkError, match="got 0 lines"):
        ns3.topology("")


# -- InfraGraph ----------------------------------------------------------------------------


def document(leaves: int = 4, cards: int = 2, spines: int = 3) -> dict[str, object]:
    edges: list[dict[str, object]] = [
        {"ep1": {"instance": f"host[{i}]", "component": "nic"},
         "ep2": {"instance": f"leafsw[{i}]", "component": "port"},
         "link": "leaf-link", "scheme": "one2one"}
        for i in range(leaves)
    ]  # fmt: skip
    edges += [
        {"ep1": {"instance": f"leafsw[{i}]", "component": f"port[{2 + j}]"},
         "ep2": {"instance": f"spinesw[{j}]", "component": f"port[{i}]"},
         "link": "spine-link", "scheme": "one2one"}
        for i in range(leaves) for j in range(spines)
    ]  # fmt: skip
    parts = [{"name": "nic", "choice": "nic", "count": cards}, {"name": "npu", "choice": "npu"}]
    return {
        "name": "closfabric",
        "devices": [
            {"name": "server", "components": parts},
            {"name": "switch", "components": [{"name": "port", "choice": "port", "count": 16}]},
        ],
        "instances": [
            {"name": "host", "device": "server", "count": leaves},
            {"name": "leafsw", "device": "switch", "count": leaves},
            {"name": "spinesw", "device": "switch", "count": spines},
        ],
        "links": [
            {"name": "leaf-link", "physical": {"bandwidth": {"gigabits_per_second": 100}}},
            {"name": "spine-link", "physical": {"bandwidth": {"gigabits_per_second": 400}}},
        ],
        "edges": edges,
    }


def test_an_infragraph_is_cards_and_switches() -> None:
    expected = leaf_spine(4, 2, 3, host_gbps=100, fabric_gbps=400)
    assert same(infragraph.topology(json.dumps(document())), expected)


def test_an_infragraph_may_be_yaml() -> None:
    text = yaml.safe_dump(document())
    assert same(infragraph.topology(text), infragraph.topology(json.dumps(document())))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"leafsw[1]"', '"leafs[1]"', "no instance is called 'leafs"),
        ('"host[3]"', '"host[4]"', r"host\[4\] is beyond the 4 there are"),
        ('"component": "nic"', '"component": "card"', "has no component 'card'"),
        ('"host[3]"', '"host[3:1]"', r"host\[3:1\] selects none"),
        ('"name": "spine-link"', '"name": "leaf-link"', "once; 'leaf-link' occurs twice"),
        ('"link": "leaf-link"', '"link": "cable"', "names a link that is not there"),
        ('"scheme": "one2one"', '"scheme": "ring"', "has the scheme 'ring'"),
        ('"component": "port"', '"component": "port[3]"', "has 2 cards for 1 ports. Name as"),
        ('"instances"', '"nodes"', "got no 'instances'"),
        ('"gigabits_per_second"', '"gigabits"', "the rate of the cable .* must be above 0"),
    ],
)
def test_infragraphs_that_cannot_be_are_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        infragraph.topology(json.dumps(document()).replace(old, new))


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(PLAIN.replace("6 3 6", "7 3 6"))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(document()))
    assert ns3.ns3(str(tmp_path / "a.txt")).hosts == 4
    assert infragraph.infragraph(str(tmp_path / "b.yaml")).hosts == 8
    for reader in (ns3.ns3, infragraph.infragraph):
        with pytest.raises(NetworkError, match=r"none\.file"):
            reader(str(tmp_path / "none.file"))


# -- damaged, or of another kind -----------------------------------------------------------

SMALL = {
    "devices": [
        {"name": "server", "components": [{"name": "nic", "choice": "nic", "count": 2}]},
        {"name": "switch", "components": [{"name": "port", "choice": "port", "count": 16}]},
    ],
    "instances": [
        {"name": "host", "device": "server", "count": 2},
        {"name": "leaf", "device": "switch", "count": 1},
    ],
    "links": [{"name": "l", "physical": {"bandwidth": {"gigabits_per_second": 100}}}],
    "edges": [
        {"ep1": {"instance": "host[0:2]", "component": "nic"},
         "ep2": {"instance": "leaf[0]", "component": "port"}, "link": "l", "scheme": "many2many"},
    ],
}  # fmt: skip
KIND = documents.Kind(SMALL, infragraph.topology, documents.fabric_works, NetworkError)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds an InfraGraph to the kinds of documents that gradwire's own tests damage."""
    monkeypatch.setitem(documents.KINDS, "infragraph", KIND)
    monkeypatch.setitem(documents.NAMES, "infragraph", "an InfraGraph")


@pytest.mark.filterwarnings("error")
def test_what_is_damaged_is_refused_or_works(known: None) -> None:
    documents.test_what_is_damaged_is_refused_or_works("infragraph")
    documents.test_what_is_no_text_of_a_document_is_refused("infragraph")


@pytest.mark.parametrize("name", [*documents.NAMES, "infragraph"])
def test_the_wrong_kind_of_document_is_called_by_its_name(name: str, known: None) -> None:
    documents.test_the_wrong_kind_of_document_is_called_by_its_name(name)
