"""Every kind of document, damaged in every place: it works, or its own error refuses it."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from damage import damaged

from gradwire import Plan, Strategy
from gradwire.buckets import Parameter
from gradwire.cli import main as cli
from gradwire.document import Document, save_file
from gradwire.errors import GradwireError, NetworkError, PlanError
from gradwire.network import Routes, dual_plane, fat_tree, leaf_spine, route
from gradwire.network.exports import pins_of
from gradwire.network.fabric import Fabric
from gradwire.network.importers import toml
from gradwire.network.parallelism import job_of
from gradwire.network.saved import from_json, to_json
from gradwire.network.simulate import simulate
from gradwire.pins import Pins
from gradwire.planner.curves import Curve
from gradwire.planner.explain import saved
from gradwire.planner.fit import Fit
from gradwire.planner.profile import Contention, LocalCost, Profile, Ready, StrategyCost
from gradwire.schema import DEPTH, List, Number, Plain, Table, Whole
from gradwire.topology import Cluster


class Kind(NamedTuple):
    """A kind of document: a valid sample, its reader, a check that it works, its error."""

    sample: Any
    read: Callable[[str], Any]
    works: Callable[[Any], object]
    error: type[GradwireError]
    write: Callable[[Any], str] = json.dumps


def affine(fixed: float, per_unit: float) -> Fit:
    return Fit(Curve(((0.0, fixed),), per_unit), 0.01, 0.02)


COST = StrategyCost(
    affine(1, 1), Fit(Curve(((0, 1), (5, 2)), 3)), affine(1, 1), affine(0, 4), 1, 2, 3
)
PROFILE = Profile(
    (Ready(Parameter("b", (100, 10)), 0.01, 0.5), Ready(Parameter("t", (9, 2), sparse=True), 0.1)),
    0.02, 0.005, ("one", "two"), contention=Contention(1.5, 0.25, 3.0, 0.5, 0.2, 0.001),
    strategies={"none | allreduce": COST}, moves={"all_reduce float32 world": affine(1, 1)},
    compressors={"bf16 @ cpu": LocalCost(affine(1, 1), affine(1, 1), affine(1, 1))},
    versions={"torch": "2.13"},
)  # fmt: skip
PREDICTION = {
    "verdict": "yes", "seconds": 1.0, "backward_seconds": 0.5, "exposed_seconds": 0.1,
    "slowed_seconds": 0.1, "baselines": {"none | allreduce": 1.2}, "lower_bound": 0.9,
    "workers": 2, "hosts": 2,
    "algorithm": "joint", "error": None, "error_budget": 0.5,
    "groups": [{"label": "a", "tensors": 1, "elements": 5, "strategy": "none | allreduce",
                "ready_seconds": 0.1, "done_seconds": 0.2, "gain_seconds": None,
                "decided_by": "gain", "why": "it is"}],
}  # fmt: skip
PLAN = Plan.make(
    [Parameter("w", (4, 4)), Parameter("b", (4,)), Parameter("t", (9, 2), sparse=True)],
    Strategy.parse("topk(0.1)+ef | allgather"),
)
CLUSTER = {
    "format": 1, "hosts": 4, "ranks_per_host": 2, "processors_per_rank": 1.5,
    "cross": {"bits_per_second": 1e9, "latency_seconds": 1e-4},
    "node": {"bytes_per_second": 1e9, "latency_seconds": 1e-4},
}  # fmt: skip
BUILT = {
    "format": 1, "topology": "leaf_spine(2, 2, 2)", "failed": ["leaf0-spine1"],
    "gbps": {"leaf1-spine0": 25},
}  # fmt: skip
CABLES = {
    "format": 1, "hosts": ["a", "b"],
    "cables": [["a", "x", 10], ["b", "y", 10], ["x", "s", 40], ["y", "s", 40]],
}  # fmt: skip
JOB = {
    "dp": 2, "pp": 2, "tp": 1, "gradient_bytes": 1000, "activation_bytes": 100, "buckets": 2,
    "microbatches": 2, "forward_seconds": 0.1, "backward_seconds": 0.2,
}  # fmt: skip


def written(routes: Routes) -> Any:
    return json.loads(to_json(routes))


def in_toml(value: Any) -> str:
    """A document as TOML, also where TOML has no such value."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "\n".join(f"{json.dumps(name)} = {_inline(own)}" for name, own in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(n)} = {_inline(own)}' for n, own in value.items())}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value)


def plan_works(plan: Plan) -> object:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    if plan.prediction is not None:
        with contextlib.suppress(PlanError):
            saved(plan).as_text()
    return plan.digest(), [bucket.offsets for bucket in plan.buckets]


def profile_works(profile: Profile) -> object:
    assert Profile.from_json(profile.to_json()) == profile
    costs = [cost.link_seconds(1e6) for cost in profile.strategies.values()]
    assert all(map(math.isfinite, costs))
    return profile.dtype


def routes_work(routes: Routes) -> object:
    assert to_json(from_json(to_json(routes))) == to_json(routes)
    assert math.isfinite(routes.seconds)
    assert math.isfinite(simulate(routes, "flow"))
    if (routes.path >= -1).all():
        pins_of(routes)
    return routes.link_bytes(), routes.splits, routes.pieces


def fabric_works(fabric: Fabric) -> object:
    return fabric.links, fabric.rates.sum()


def pins_work(found: Pins) -> object:
    assert Pins.from_json(found.to_json()) == found
    return [list(found.parts(0, target, 1 << 20)) for target in range(4)]


def cluster_works(cluster: Cluster) -> object:
    assert Cluster.from_toml(cluster.to_toml()) == cluster
    return cluster.with_rate(1e9).world


def assert_is_short(error: Exception) -> None:
    assert len(str(error)) < 1000


FLOWS = [(0, 2, 1000), (1, 3, 999), (0, 1, 5)]
KINDS = {
    "plan": Kind(
        {**json.loads(PLAN.to_json()), "prediction": PREDICTION}, Plan.from_json, plan_works,
        PlanError,
    ),
    "profile": Kind(json.loads(PROFILE.to_json()), Profile.from_json, profile_works, PlanError),
    "pinned routes": Kind(
        written(route(FLOWS, leaf_spine(2, 2, 2), "min_split")), from_json, routes_work,
        NetworkError,
    ),
    "sprayed routes": Kind(
        written(route(FLOWS, dual_plane(2, 2, 2), "spray")), from_json, routes_work, NetworkError
    ),
    "routes of three tiers": Kind(
        written(route([(0, 7, 10)], fat_tree(2, 2, 2, 2, 2))), from_json, routes_work,
        NetworkError,
    ),
    "pins": Kind(
        {"format": 1, "hosts": 4, "pairs": [[0, 2, 0, [[1, 5], [0, 3]]], [1, 3, 1, []]]},
        Pins.from_json, pins_work, PlanError,
    ),
    "cluster": Kind(CLUSTER, Cluster.from_toml, cluster_works, PlanError, in_toml),
    "topology": Kind(BUILT, toml.topology, fabric_works, NetworkError, in_toml),
    "cables": Kind(CABLES, toml.topology, fabric_works, NetworkError, in_toml),
    "job": Kind(JOB, job_of, lambda job: job.ranks, NetworkError, in_toml),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("error")
def test_what_is_damaged_is_refused_or_works(name: str) -> None:
    kind = KINDS[name]
    kind.works(kind.read(kind.write(kind.sample)))
    refused = 0
    for what, document in damaged(kind.sample):
        try:
            kind.works(kind.read(kind.write(document)))
        except kind.error as error:
            refused += 1
            assert_is_short(error)
        except Exception as error:
            raise AssertionError(f"{name}: {what}") from error
    assert refused > 100


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_text_of_a_document_is_refused(name: str) -> None:
    kind = KINDS[name]
    for text in (
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        "[1, NaN]",
        "9" * 5000,
        "\x00",
        "\ufeff",
    ):
        with pytest.raises(kind.error):
            kind.read(text)


# -- schemas -----------------------------------------------------------------------------------

POINTS = Document(
    "a list of points",
    Table({"points": List(Table({"x": Number(0, 1), "n": Whole(1)}), least=1)}, {"more": Plain()}),
    PlanError, "Write it again", 2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3", "a list of points must be a table of points, more; got 3. Write it again."),
        ("{}", "must have format 2 in this version of gradwire; got None. Write it again."),
        ('{"format": true}', "must have format 2 in this version of gradwire; got True"),
        ('{"format": 2}', "a list of points must have points; got no 'points'. Write it again."),
        ('{"format": 2, "points": []}', "points must be a list of at least 1; got []"),
        ('{"format": 2, "points": [{"x": 2, "n": 1}]}', "in a list of points points[0].x must "
         "be a finite number, 0 to 1; got 2. Write it again."),
        ('{"format": 2, "points": [{"x": 1, "n": 1.0}]}', "[0].n must be a whole number, 1 to"),
        ('{"format": 2, "points": [{"x": true, "n": 1}]}', "points[0].x must be a finite number"),
        ('{"format": 2, "points": [{"x": 1e999, "n": 1}]}', "points[0].x must be a finite number"),
        ('{"format": 2, "points": [{"x": NaN, "n": 1}]}', "NaN is not a JSON number"),
        ('{"format": 2, "points": [{"x": 1, "n": 1}], "more": 1e999}', "must have finite numbers"),
    ],
)  # fmt: skip
def test_the_place_the_rule_and_the_value_are_told(text: str, said: str) -> None:
    with pytest.raises(PlanError) as raised:
        POINTS.read(text)
    assert said in str(raised.value)


def test_what_no_schema_describes_is_not_deep() -> None:
    def nested(depth: int) -> str:
        return (
            '{"format": 2, "points": [{"x": 1, "n": 1}], "more": '
            + "[" * depth
            + "]" * depth
            + "}"
        )

    assert POINTS.read(nested(DEPTH))["more"]
    with pytest.raises(PlanError, match=f"more must be nested at most {DEPTH} deep"):
        POINTS.read(nested(DEPTH + 1))


# -- kinds -------------------------------------------------------------------------------------

NAMES = {
    "plan": "a plan", "profile": "a profile", "pinned routes": "a document of routes",
    "pins": "a document of pins", "cluster": "a cluster", "topology": "a topology",
    "cables": "a topology", "job": "a parallel job",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_wrong_kind_of_document_is_called_by_its_name(name: str) -> None:
    kind = KINDS[name]
    text = kind.write(kind.sample)
    for other, called in NAMES.items():
        if called != NAMES[name]:
            with pytest.raises(KINDS[other].error, match=f"is needed here; got {NAMES[name]}"):
                KINDS[other].read(text)


def test_a_profile_that_is_to_be_explained_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    PROFILE.save(path)
    assert cli.main(["explain", str(path)]) == 2
    said = f"got a profile. Run `gradwire plan --profile {path}`."
    assert said in capsys.readouterr().err


# -- written ------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    save_file(path, "former")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save_file(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plan.json", "former")]


def test_a_link_stays_one_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "plan.json", tmp_path / "link.json"
    path.write_text("former")
    path.chmod(0o640)
    link.symlink_to(path)
    save_file(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        save_file(pipe, "all of it")
        assert os.read(end, 100) == b"all of it"
    finally:
        os.close(end)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_without_a_name_is_written_to() -> None:
    """As /dev/stdout of a command before "|", or of >(…) in bash."""
    read, write = os.pipe()
    save_file(f"/dev/fd/{write}", "all of it")
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read() == b"all of it"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY])
def test_a_file_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Containers mount single files, and files stand in folders of others."""
    path = tmp_path / "plan.json"
    path.write_text("former")

    def refuse(self: Path, end: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refuse)
    save_file(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plan.json", "new")]
