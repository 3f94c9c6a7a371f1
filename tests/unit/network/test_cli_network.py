"""gradwire network: tables, verdicts, pictures, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli.main import main
from gradwire.network.exports import pins_of
from gradwire.network.saved import from_json
from gradwire.pins import Pins

JOB = ["--topology", "leaf_spine(8, 8, 8)", "--placement", "shuffled", "--seed", "1"]
SHUFFLED = ["network", "plan", *JOB]


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHUFFLED) == 0
    out = capsys.readouterr().out
    assert out.startswith("Pin paths by 'coloured': ")
    for row in ("ecmp ", "ecmp_k(8)", "ethereal", 'spray("rotating")', "min_split"):
        assert f"\n{row}" in out
    assert "\nAt least: " in out
    assert "\nTo test it: run this collective ten times over hashed paths" in out


def test_paths_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "routes.json"
    assert main([*SHUFFLED, "-o", str(file)]) == 0
    assert from_json(file.read_text()).splits == 0
    assert main([*SHUFFLED, "--scheme", "ethereal", "-o", str(file)]) == 0
    assert from_json(file.read_text()).splits > 0
    before, page = file.read_text(), tmp_path / "page.html"
    capsys.readouterr()
    ordered = ["network", "plan", "--topology", "leaf_spine(8, 8, 8)", "-o", str(file)]
    assert main([*ordered, "--html", str(page)]) == 2
    out, err = capsys.readouterr()
    assert "no scheme is worth pinning" in err
    assert "\nAt least: " in out, "what was found is told all the same"
    assert page.exists()
    assert file.read_text() == before


def test_the_same_as_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHUFFLED, "--json", "--scheme", "coloured"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recommended"] == "coloured"
    assert [row["scheme"] for row in told["rows"]] == ["ecmp", "coloured"]


def test_ranks_of_machines_stay_together(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SHUFFLED, "--per-machine", "8", "--traffic", "all_to_all", "--json"]
    assert main(asked) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["pieces"] for row in rows if row["scheme"] == "ecmp"} == {8 * 8 * 56}


def test_what_fails_is_gone_around(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--fail", "spine0", "--fail", "leaf1-spine2", "--json"]
    assert main([*SHUFFLED, *asked]) == 0
    broken = json.loads(capsys.readouterr().out)
    assert main([*SHUFFLED, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert broken["bounds"]["fabric_seconds"] > whole["bounds"]["fabric_seconds"]


def test_a_job_goes_on_in_the_plane_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--topology", "dual_plane(4, 2, 1)", "--traffic", "ring", "--json"]
    assert main(["network", "plan", *asked, "--fail", "plane0.spine0"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert "coloured" in {row["scheme"] for row in rows}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--ranks", "65"], "every rank needs a host of its own; got 65 ranks for 64"),
        (["--fail", "spine9"], "a link or a switch of the topology; got 'spine9'"),
        (["--scheme", "fastest"], "'fastest' is not a scheme"),
        (["--per-machine", "0"], "--per-machine is a whole number of at least 1; got 0"),
        (["--bytes", "-1"], "--bytes must be from 1 to 1e+15; got -1.0"),
        (["--bytes", "nan"], "--bytes must be from 1 to 1e+15; got nan"),
        (["--ranks", "0"], "--ranks is a whole number of at least 1; got 0"),
        (["--per-machine", "65"], "got --per-machine 65 and 64 hosts"),
        (["--seed", "-1"], "seed is a whole number of at least 0; got -1"),
        (["--traffic", "rung"], "Use 'ring'; tokens: pip install ./contrib/formats."),
        (["--topology", "torus(4)"], "'torus' is not a topology"),
    ],
)
def test_what_cannot_be_is_refused(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHUFFLED, *more]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["static", "flow", "packet"])
def test_engines_tell_how_long_schemes_take(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--engine", engine, "--bytes", "640000", "--json", "--traffic", "direct"]
    assert main(["network", "simulate", *JOB, *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["engine"] == engine
    seconds = {row["scheme"]: row["seconds"] for row in told["rows"]}
    assert seconds["coloured"] <= 1.05 * seconds["ecmp"]
    assert min(seconds.values()) >= told["least"] * (1 - 1e-9)
    assert main(["network", "simulate", *JOB, "--engine", engine, "--scheme", "coloured"]) == 0
    assert f"engine: {engine}" in capsys.readouterr().out


def test_what_if_tells_failures_spines_and_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*JOB, "--vary", "spines=4,16", "--places", "3"]
    assert main(["network", "whatif", *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cables"]["number"] == 64
    assert told["switches"]["number"] == 8
    assert told["cables"]["worst"] >= told["cables"]["median"] > 0
    few, many = (row["seconds"] for row in told["vary"])
    assert few > told["seconds"] == many
    assert told["places"]["in_order"] <= told["places"]["least"] <= told["places"]["most"]
    assert main(["network", "whatif", *asked]) == 0
    out = capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["network", "whatif", *asked, "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert re.search(r"at most 2\.00 times as long: with(out)? ", text)
    assert "<svg" in text
    calm = ["--topology", "leaf_spine(4, 4, 4)", "--places", "2", "--html", str(page)]
    assert main(["network", "whatif", *calm]) == 0
    assert "s; nothing that was tried makes it longer." in page.read_text(encoding="utf-8")
    for line in ("as it is", "one of 64 cables fails, median", "spines = 4", "ranks anywhere"):
        assert line in out
        assert line in text


@pytest.mark.parametrize(("scheme", "is_hashed"), [("ecmp", True), ("coloured", False)])
def test_failures_of_hashed_paths_are_those_of_a_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, scheme: str, is_hashed: bool
) -> None:
    """Switches would hash anew what used a failed link; a plan finds it the least loaded paths."""
    page = tmp_path / "page.html"
    asked = ["--topology", "leaf_spine(2, 2, 2)", "--places", "0", "--html", str(page)]
    assert main(["network", "whatif", *asked, "--scheme", scheme]) == 0
    said = "Switches would hash them anew"
    assert (said in capsys.readouterr().out) == is_hashed == (said in page.read_text("utf-8"))


def test_what_failed_is_missing_from_every_topology_that_is_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["network", "whatif", "--topology", "leaf_spine(4, 4, 4)", "--traffic", "direct"]
    failed = ["--fail", "spine0", "--fail", "spine1", "--fail", "spine2"]
    found = told(capsys, [*asked, *failed, "--vary", "spines=4,5", "--places", "0"])
    same, more = (row["seconds"] for row in found["vary"])
    assert same == found["seconds"] > more


@pytest.mark.parametrize(
    "topology", ["leaf_spine(4, 4, 4, fabric_gbps=400)", "dual_plane(2, 2, 2)"]
)
def test_nothing_is_faster_without_what_failed(
    topology: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hosts' links are slowest, with all links and without some."""
    asked = ["network", "whatif", "--topology", topology, "--traffic", "direct", "--places", "0"]
    found = told(capsys, asked)
    for kind in ("cables", "switches"):
        assert found["seconds"] * (1 - 1e-9) <= found[kind]["median"] <= found[kind]["worst"]


def test_json_has_no_number_for_what_never_ends(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["network", "whatif", "--topology", "leaf_spine(2, 2, 1)", "--places", "0", "--json"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "Infinity" not in out
    cables = json.loads(out)["cables"]
    assert cables == {"number": 2, "median": None, "worst": None, "which": "leaf0",
                      "to": "spine0", "cable": 0, "cut_off": 2}  # fmt: skip
    assert main(asked[:-1]) == 0
    assert "3 of these failures leave hosts without a path." in capsys.readouterr().out


def test_the_worst_cable_has_the_name_that_fail_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two cables to a spine the second is the faster, so it is missed most."""
    own = 'topology = "leaf_spine(2, 4, 1, parallel=2)"\n[gbps]\n"leaf0-spine0" = 20\n'
    (tmp_path / "a.toml").write_text("format = 1\n" + own)
    asked = ["--topology", str(tmp_path / "a.toml"), "--placement", "shuffled"]
    whatif = ["network", "whatif", *asked, "--scheme", "wrap", "--places", "0"]
    assert main([*whatif, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cables"]
    assert (found["which"], found["to"], found["cable"]) == ("leaf0", "spine0", 1)
    assert main(whatif) == 0
    assert "the worst: leaf0-spine0-1" in capsys.readouterr().out
    failed = ["--scheme", "wrap", "--fail", "leaf0-spine0-1", "--json"]
    assert main(["network", "simulate", *asked, "--engine", "static", *failed]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["seconds"] == pytest.approx(found["worst"])


def test_connection_matrices_are_flows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.cm").write_text("Nodes 4\nConnections 1\n0->40 id 1 start 0 size 1000\n")
    asked = [*JOB[:2], "--flows", str(tmp_path / "a.cm")]
    assert main(["network", "simulate", *asked, "--json", "--scheme", "coloured"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["seconds"] == pytest.approx(8e-8)
    assert main(["network", "plan", *JOB[:2], "--flows", str(tmp_path / "b.cm")]) == 2
    assert "a text file that can be read; " in capsys.readouterr().err
    for more in (["--placement", "shuffled"], ["--ranks", "4"], ["--bytes", "1e6"]):
        assert main(["network", "plan", *asked, *more]) == 2
        assert f"got {more[0]} beside --flows" in capsys.readouterr().err


def test_flows_start_when_their_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two flows of 4 MB to one host: the second starts at once, or long after the first ended."""
    for start in (0, 900):
        (tmp_path / "b.cm").write_text(
            f"Nodes 4\n1->0 id 1 start 0 size 4194304\n2->0 id 2 start {start} size 4194304\n"
        )
        asked = ["--topology", "leaf_spine(2, 2, 2)", "--flows", str(tmp_path / "b.cm"), "--json"]
        for engine in ("flow", "packet"):
            more = ["--engine", engine, "--scheme", "coloured"]
            assert main(["network", "simulate", *asked, *more]) == 0
            found, alone = json.loads(capsys.readouterr().out), 4194304 * 8 / 100e9
            seconds, least = found["rows"][0]["seconds"], max(2 * alone, start * 1e-6 + alone)
            assert seconds == pytest.approx(least, rel=0.02)
            assert found["least"] == pytest.approx(least)


def test_packets_have_the_latency_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte over four links, with the option's latency, the topology file's, or 500 ns."""
    file = tmp_path / "small.topo"
    file.write_text(
        "Nodes 4\nTiers 2\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 2\nRadix_Up 2\n"
        "Downlink_Latency_ns 1000\nTier 1\nDownlink_speed_Gbps 100\nDownlink_Latency_ns 1000\n"
    )
    (tmp_path / "a.cm").write_text("Nodes 4\n0->2 id 1 start 0 size 1\n")
    asked = ["--engine", "packet", "--flows", str(tmp_path / "a.cm"), "--scheme", "coloured"]
    for topology, more, latency in (
        ("leaf_spine(2, 2, 2)", [], 500e-9), (str(file), [], 1000e-9),
        (str(file), ["--latency-ns", "50"], 50e-9),
    ):  # fmt: skip
        assert main(["network", "simulate", "--topology", topology, *asked, *more, "--json"]) == 0
        seconds = json.loads(capsys.readouterr().out)["rows"][0]["seconds"]
        assert seconds == pytest.approx(4 * (latency + 8e-11))


def test_packets_have_headers_acknowledgements_and_switches_that_choose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two hosts send to each other; then 32 hosts, whose switches choose the paths."""
    asked = ["--engine", "packet", "--bytes", "4096000", "--traffic", "direct", "--json"]
    two = [*asked, "--topology", "leaf_spine(1, 2, 1)", "--scheme", "coloured"]

    def seconds(*more: str) -> float:
        assert main(["network", "simulate", *more]) == 0
        return float(json.loads(capsys.readouterr().out)["rows"][0]["seconds"])

    plain = seconds(*two)
    assert seconds(*two, "--header-bytes", "4096") == pytest.approx(2 * plain, rel=0.01)
    acks = ["--ack-bytes", "4096", "--ack-packets", "2"]
    assert seconds(*two, *acks) == pytest.approx(1.5 * plain, rel=0.02)
    many = [*JOB, "--engine", "packet", "--bytes", "1e6", "--scheme", "spray", "--json"]
    found = [seconds(*many, "--spraying", s) for s in ("random", "adaptive", "round_robin")]
    assert len(set(found)) == 3
    assert main(["network", "simulate", *many[: many.index("--scheme")], "--json"]) == 0
    rows = {row["scheme"]: row["seconds"] for row in json.loads(capsys.readouterr().out)["rows"]}
    each = [rows[f"spray, {s}"] for s in ("random", "adaptive", "round_robin")]
    assert each == found
    assert not [name for name in rows if name.startswith("spray(")]


def test_a_heat_map_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loads.svg"
    assert main(["network", "heatmap", *JOB, "-o", str(file)]) == 0
    assert file.read_text().startswith("<svg")
    assert "coloured: " in capsys.readouterr().out
    assert main(["network", "heatmap", *JOB, "-o", str(tmp_path / "no" / "x.svg")]) == 2


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("spines", "a name and its values; got 'spines'"),
        ("racks=3", "a parameter of the builder"),
        ("spines=0", "spines is a whole number of at least 1"),
    ],
)
def test_what_cannot_vary_is_refused(
    vary: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["network", "whatif", *JOB, "--vary", vary]) == 2
    assert said in capsys.readouterr().err


def test_pins_are_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routes, pins = tmp_path / "routes.json", tmp_path / "pins.json"
    assert main([*SHUFFLED, "-o", str(routes)]) == 0
    capsys.readouterr()
    export = ["network", "export", str(routes), "--format", "pins"]
    assert main([*export, "-o", str(pins)]) == 0
    assert capsys.readouterr().out.startswith(f"{pins}: pins, ")
    assert Pins.load(pins) == pins_of(from_json(routes.read_text()))
    assert main([*export, "-o", str(tmp_path / "nowhere" / "pins.json")]) == 2
    assert "Make the folder" in capsys.readouterr().err


def test_paths_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routes = tmp_path / "routes.json"
    job = ["--topology", "leaf_spine(2, 2, 2)", "--traffic", "all_to_all", "--bytes", "4000"]
    assert main(["network", "plan", *job, "--scheme", "coloured", "-o", str(routes)]) == 0
    capsys.readouterr()
    begins = {
        "htsim": "Nodes 4\nConnections 12\n",
        "topo(900)": "Nodes 4\nTiers 2\n",
        "pins": '{"format": 1, "hosts": 4, "pairs": ',
    }
    export = ["network", "export", str(routes)]
    for name, begin in begins.items():
        assert main([*export, "--format", name]) == 0
        text = capsys.readouterr().out
        assert text.startswith(begin)
        assert main([*export, "--format", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"format": name, "text": text}
    assert main(export) == 0
    assert capsys.readouterr().out == text, "of pins"
    wrong = {
        'hccl("a.txt", "b.json")': "(known: pins, htsim, topo). Use one of these; hccl, nccl, "
        "ports, srv6: pip install ./contrib/formats.",
        "pins(3)": "the parameters of 'pins' do not fit: takes 1 positional argument but 2 were",
        "pin": "Use 'pins'; hccl",
    }
    for text, said in wrong.items():
        assert main([*export, "--format", text]) == 2
        assert said in capsys.readouterr().err


def test_groups_exchange_among_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SHUFFLED, "--traffic", "all_to_all", "--groups-of", "4", "--scheme", "coloured"]
    found = told(capsys, asked)
    assert found["recommended"] == "coloured"
    assert found["rows"][0]["pieces"] < 64 * 3
    assert main([*asked[:-3], "3"]) == 2
    assert "every group must have 3 ranks; got 64" in capsys.readouterr().err
    mixed = [*SHUFFLED, "--strategy", "none | allreduce", "--groups-of", "4"]
    assert main(mixed) == 2
    assert "got --groups-of 4 beside --strategy" in capsys.readouterr().err
    assert main([*mixed[:-1], "0"]) == 2
    assert "got --groups-of 0 beside --strategy" in capsys.readouterr().err
    assert main([*asked, "--density", "0.5"]) == 2
    assert "got --density 0.5 without --strategy" in capsys.readouterr().err


def test_a_strategy_is_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    """topk(0.01) is an all-gather of a hundredth of the entries, less traffic than dense."""
    dense, sparse = (
        told(capsys, [*SHUFFLED, "--strategy", text, "--scheme", "coloured"])["bounds"]
        for text in ("none | allreduce", "topk(0.01)+ef | allgather")
    )
    assert dense == told(capsys, [*SHUFFLED, "--scheme", "coloured"])["bounds"]
    assert 0 < sparse["fabric_seconds"] < dense["fabric_seconds"]
    assert main([*SHUFFLED, "--strategy", "topk(0.01)+ef | zen | 5"]) == 2


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


JOB_FILE = """dp = 8
pp = 4
tp = 2
gradient_bytes = 400_000_000
activation_bytes = 8_000_000
microbatches = 4
forward_seconds = 0.001
backward_seconds = 0.002
"""


def test_a_step_of_a_parallel_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB_FILE)
    asked = ["network", "simulate", *JOB, "--per-machine", "2", "--step", str(file)]
    found = told(capsys, asked)
    seconds = {row["scheme"]: row["seconds"] for row in found["rows"]}
    assert found["least"] == pytest.approx((4 + 3) * 0.003)
    assert found["least"] < seconds["coloured"] < seconds["ecmp"]
    assert main(asked) == 0
    assert "Without a network: 0.021 s" in capsys.readouterr().out
    page = tmp_path / "step.html"
    assert main([*asked, "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "Rank by rank" in text
    assert '"of microbatch 3"' in text
    assert "backward of microbatch" not in text, "its kind stands before it"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--step", "nothing"], "Use one of these; chakra: pip install ./contrib/formats."),
        (["--step", "my/traces/"], "'a plan (.json), a parallel job (.toml), or a reader with"),
        (["--step", "job.toml"], "a text file that can be read"),
        (["--step", "plan.json"], "--profile is missing"),
        (
            ["--step", "plan.json", "--profile", "p", "--ranks", "63", "--per-machine", "8"],
            "must fill their machines; got 63 ranks and --per-machine 8. Pass --ranks 56.",
        ),
        (["--profile", "p.json"], "and no --step PLAN.json"),
        (["--profile", "p.json", "--step", "job.toml"], "and no --step PLAN.json"),
        (["--tolerance", "0.1", "--engine", "static"], "the static engine has none"),
        (["--step", "x.toml", "--engine", "packet"], "needs --engine flow; got --engine packet"),
    ],
)
def test_steps_that_cannot_be_are_refused(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["network", "simulate", *JOB, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_step_says_how_many_ranks_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB_FILE)
    assert main(["network", "simulate", *JOB, "--step", str(file), "--ranks", "8"]) == 2
    assert "a fixed number of ranks, 64; got --ranks 8" in capsys.readouterr().err
