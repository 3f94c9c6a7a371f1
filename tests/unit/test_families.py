"""Members of other packages: an error names the package, and other members go on working."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import gradwire
from gradwire import compressors, families
from gradwire.compressors import Identity
from gradwire.errors import NetworkError, StrategyError
from gradwire.families import COMPRESSORS, FEEDBACK, ROUTING, TOPOLOGIES, Family
from gradwire.feedback import ErrorFeedback
from gradwire.network import Flow, Flows
from gradwire.network.demand import in_groups, pattern_of
from gradwire.network.exports import written
from gradwire.network.fabric import Fabric
from gradwire.network.patterns import ring
from gradwire.network.routes import Routes
from gradwire.network.routing import Coloured, Scheme
from gradwire.network.routing.route import route
from gradwire.network.topologies import topology_of
from gradwire.strategy import Claims, Compressor, Key, Sections, State, StepInfo, Strategy

HEAD = """
from dataclasses import dataclass
from typing import ClassVar
from gradwire.compressors import Identity
from gradwire.strategy import Compressor
"""
GOOD = """
@dataclass(frozen=True)
class Good(Identity):
    "The gradient as it is."
    name: ClassVar[str] = "good"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Family]]:
    """Returns a function that installs a package and returns a family which finds it."""
    made = []

    def install(package: str, source: str, group: str = "compressors", **offers: str) -> Family:
        module = package.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(HEAD + source, encoding="utf-8")
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = "\n".join(f"{name} = {module}:{place}" for name, place in offers.items())
        (about / "entry_points.txt").write_text(f"[gradwire.{group}]\n{points}\n")
        made.append(module)
        importlib.invalidate_caches()
        own = {known.name: known for known in families.ALL}[group]
        return Family(own.name, own._home, own.kind, own._error)

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for module in made:
        sys.modules.pop(module, None)


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes a test's registrations when it ends."""
    for family in families.ALL:
        for kept in ("_others", "_packages"):
            monkeypatch.setattr(family, kept, {})
        monkeypatch.setattr(family, "_tried", set())
        monkeypatch.setitem(family.__dict__, "_offers", {})


def test_a_package_s_member_is_one_of_the_family(installed: Callable[..., Family]) -> None:
    family = installed("good-package", GOOD, good="Good")
    assert "good" in family
    assert family["good"].name == "good"
    assert list(family)[-1] == "good"
    assert len(family) == len(compressors.MEMBERS) + 1
    assert family.whose("good") == "package good-package"
    assert family.whose("topk") is None
    assert family.made(family["good"]()) == family["good"]()


def test_its_module_is_loaded_only_if_it_is_asked_for(installed: Callable[..., Family]) -> None:
    family = installed("lazy-package", GOOD, good="Good")
    assert family["topk"]
    assert "good" in family
    assert "lazy_package" not in sys.modules
    assert family["good"]
    assert "lazy_package" in sys.modules


BAD = {
    "raises": ("raise RuntimeError('no licence')", r"cannot be loaded: RuntimeError: no licence"),
    "lacks": ("", r"cannot be loaded: AttributeError"),
    "is_no_class": ("Bad = 3", r"a class that derives from gradwire\.strategy\.Compressor"),
    "is_of_another_kind": (
        "from gradwire.feedback import ErrorFeedback as Base\n@dataclass(frozen=True)\n"
        "class Bad(Base):\n    name: ClassVar[str] = 'bad'",
        "derives from",
    ),
    "is_abstract": (
        "@dataclass(frozen=True)\nclass Bad(Compressor):\n    name: ClassVar[str] = 'bad'",
        r"it must define accumulate, claims, decode, encode",
    ),
    "is_no_dataclass": (
        "class Bad(Compressor):\n    name = 'bad'\n"
        "    claims = encode = decode = accumulate = lambda self: None",
        "frozen dataclass",
    ),
    "has_another_name": (
        "@dataclass(frozen=True)\nclass Bad(Identity):\n    name: ClassVar[str] = 'other'",
        "the same as its entry point's; got 'other'",
    ),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_one_is_refused_by_its_package_s_name(
    how: str, installed: Callable[..., Family]
) -> None:
    source, said = BAD[how]
    family = installed("bad-package", source, bad="Bad")
    with pytest.raises(StrategyError, match=said) as raised:
        family["bad"]
    assert "package bad-package offers 'bad' as a compressor" in str(raised.value)
    with pytest.warns(UserWarning, match="bad-package"):
        assert len(list(family)) == len(compressors.MEMBERS), "the others are none the worse"


def test_a_name_of_ours_is_ours(installed: Callable[..., Family]) -> None:
    family = installed("shadow-package", GOOD.replace('"good"', '"topk"'), topk="Good")
    with pytest.warns(UserWarning, match="package shadow-package offers 'topk'.*gradwire has"):
        assert "nothing" not in family
    assert family["topk"] is COMPRESSORS["topk"]


def test_two_packages_with_one_name(installed: Callable[..., Family]) -> None:
    installed("first-package", GOOD, good="Good")
    family = installed("second-package", GOOD, good="Good")
    with pytest.warns(UserWarning, match="but first-package has|but second-package has"):
        assert family["good"]


# -- in a program ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mine(Identity):
    """Sends the gradient as it is."""

    name: ClassVar[str] = "mine"


def test_a_member_is_registered(brought: None) -> None:
    assert gradwire.register(Mine) is Mine
    assert Strategy.parse("mine | allgather").compressor == Mine()
    assert gradwire.register(Mine) is Mine, "again, as a notebook's cell does"
    assert gradwire.available()["compressors"]["mine"] == "Sends the gradient as it is."


def test_what_is_no_member_is_not(brought: None) -> None:
    @dataclass(frozen=True)
    class Shadow(Identity):
        name: ClassVar[str] = "topk"

    with pytest.raises(StrategyError, match="gradwire has a compressor 'topk'"):
        gradwire.register(Shadow)
    for nothing in (3, int, "topk"):
        with pytest.raises(StrategyError, match="derives from Compressor, Feedback or Collective"):
            gradwire.register(nothing)


@dataclass(frozen=True)
class Wrong(Identity):
    """Breaks the rule that `how` names."""

    how: str = ""
    name: ClassVar[str] = "wrong"

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        if self.how == "claims":
            return None  # type: ignore[return-value]
        if self.how == "sections":
            return Claims((("float33", n),))
        return Claims((("float32", n),), lossless=self.how == "lossless",
                      contraction=0.9 if self.how == "contraction" else None)  # fmt: skip

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        if self.how == "raises":
            raise ValueError("no such thing")
        if self.how == "input":
            x.zero_()
        sections[0].copy_(x * (0.5 if self.how in ("lossless", "contraction") else 1.0))
        if (self.how != "quiet" and not x.isfinite().all()) or self.how == "loud":
            status.fill_(1)

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        if self.how == "part":
            x[:3].copy_(sections[0][:3])
        elif self.how == "shape":
            x.copy_(sections[0][:7])
        else:
            x.copy_(sections[0])

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        total = torch.stack([sections[0] for sections in payloads]).sum(0)
        x.copy_(total if self.how == "sum" else total / divisor)


def test_parameters_that_cannot_be_compared(brought: None) -> None:
    gradwire.register(Wrong)
    with pytest.raises(StrategyError, match="it raised TypeError: unhashable type"):
        Strategy.parse("wrong(how=['a']) | allgather")


WRONG = {
    "claims": "claims.* must return Claims; it returned None",
    "sections": "the name of a dtype and a count; got",
    "raises": "it raised ValueError: no such thing",
    "input": "encode must not change its input",
    "quiet": "encode must raise the status for inf and NaN, and for nothing else",
    "loud": "encode must raise the status for inf and NaN, and for nothing else",
    "part": "decode must overwrite all elements",
    "shape": "it raised RuntimeError",
    "sum": "accumulate of two equal payloads",
    "lossless": "claims to be lossless",
    "contraction": "claims a contraction of 0.9",
}


@pytest.mark.parametrize("how", WRONG)
def test_a_compressor_that_breaks_a_law_is_refused_when_it_is_made(
    how: str, brought: None
) -> None:
    gradwire.register(Wrong)
    with pytest.raises(StrategyError, match=WRONG[how]) as raised:
        Strategy.parse(f"wrong(how='{how}') | allgather")
    assert "a compressor of package test_families" in str(raised.value)


@dataclass(frozen=True)
class OfOld(Wrong):
    """A compressor of the old form: it returns whether all was finite."""

    name: ClassVar[str] = "of_old"

    def encode(self, x: Tensor, sections: Sections, key: Key) -> bool:  # type: ignore[override]
        return True


def test_one_of_an_earlier_version_is_told_the_rule(brought: None) -> None:
    gradwire.register(OfOld)
    with pytest.raises(StrategyError, match="raise the status, on the device") as raised:
        Strategy.parse("of_old | allgather")
    assert "a compressor of package test_families" in str(raised.value)


def test_one_that_keeps_them_is_not(brought: None) -> None:
    gradwire.register(Wrong)
    assert Strategy.parse("wrong | allgather").compressor == Wrong()


@dataclass(frozen=True)
class Lossy(ErrorFeedback):
    """Loses half of the residual, or does what `how` says."""

    how: str = ""
    name: ClassVar[str] = "lossy"

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        if self.how == "shape":
            return {"residual": (x - sent).view(8, -1)}
        if self.how == "number":
            return {"residual": x - sent, "count": 3}  # type: ignore[dict-item]
        return {"residual": (x - sent) * (1.0 if self.how else 0.5)}

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        return (x.zero_() if self.how == "input" else x), {}


@pytest.mark.parametrize(
    ("how", "said"),
    [("", "sent must equal what was encoded"), ("shape", "as many elements as the gradient"),
     ("number", "names to tensors; 'count' is int"), ("input", "the gradient was changed")],
)  # fmt: skip
def test_a_feedback_that_breaks_a_law(how: str, said: str, brought: None) -> None:
    gradwire.register(Lossy)
    with pytest.raises(StrategyError, match=said) as raised:
        Strategy.parse(f"topk(0.1)+lossy(how='{how}') | allgather")
    assert "a feedback of package test_families" in str(raised.value)


@dataclass(frozen=True)
class Half(Scheme):
    """Routes half of the flows, or does what `how` says."""

    how: str = "half"
    name: ClassVar[str] = "half"

    def route(self, fabric: Any, flows: Any, seed: int) -> Any:
        if self.how == "none":
            return None
        if self.how == "raises":
            raise IndexError("out of luck")
        if self.how == "good":
            return Coloured().route(fabric, flows, seed)
        if self.how == "elsewhere":
            fabric = topology_of("leaf_spine(2, 2, 3)")
        found = Coloured().route(fabric, flows[::-1] if self.how == "turned" else flows, seed)
        if self.how in ("beyond", "below", "dead"):
            found.path[0] = {"beyond": 9, "below": -3, "dead": 1}[self.how]
        elif self.how == "half":
            found.amount[0] //= 2
        return found


@pytest.mark.parametrize(
    ("how", "said"),
    [("half", "the pieces of a flow must add up"), ("none", "route must return Routes"),
     ("raises", "it raised IndexError: out of luck"), ("elsewhere", "it took another"),
     ("turned", "the flows that it is given"), ("beyond", "piece 0 takes another"),
     ("below", "piece 0 takes another"), ("dead", "spine1-leaf1 has failed")],
)  # fmt: skip
def test_a_routing_scheme_that_breaks_a_law(how: str, said: str, brought: None) -> None:
    gradwire.register(Half)
    fabric = topology_of("leaf_spine(2, 2, 2)").without("leaf1-spine1")
    flows = [Flow(0, 2, 1000), Flow(1, 3, 1000)]
    assert route(flows, fabric, "half(how='good')").seconds > 0
    with pytest.raises(NetworkError, match=said) as raised:
        route(flows, fabric, f"half(how='{how}')")
    assert "a routing scheme of package test_families" in str(raised.value)


def flat(hosts: int) -> Any:
    """Returns no topology."""
    return [hosts]


def unlucky(hosts: int) -> Fabric:
    """Has a fault of its own."""
    raise ZeroDivisionError(f"of {hosts} hosts")


def two(hosts: int) -> Fabric:
    """A topology of two leaves and a spine."""
    return topology_of(f"leaf_spine(2, {hosts}, 1)")


def test_topologies_are_functions(brought: None) -> None:
    assert gradwire.register(two) is two
    assert topology_of("two(3)").hosts == 6
    gradwire.register(flat)
    with pytest.raises(NetworkError, match="test_families must return Fabric; it returned list"):
        topology_of("flat(3)")
    gradwire.register(unlucky)
    with pytest.raises(NetworkError, match="it raised ZeroDivisionError: of 3 hosts"):
        topology_of("unlucky(3)")
    assert "two" in TOPOLOGIES
    assert {"coloured", "ef"} <= {*ROUTING, *FEEDBACK}
    assert isinstance(COMPRESSORS["topk"](0.1), Compressor)


def count_pieces(routes: Routes, word: str = "pieces") -> str:
    """The number of pieces, as text."""
    return f"{routes.pieces} {word}"


def test_formats_are_functions_of_what_they_are_given(brought: None) -> None:
    assert gradwire.register(count_pieces) is count_pieces
    routes = route([Flow(0, 2, 1000)], topology_of("leaf_spine(2, 2, 2)"))
    assert written("count_pieces(word='of them')", routes) == "1 of them"
    with pytest.raises(NetworkError, match=r"Use 'count_pieces\(word='pieces'\)'\.$"):
        written("count_pieces(3, 4)", routes)


def to_the_first(ranks: int, bytes: int, times: int = 1) -> Flows:
    """All ranks send to rank 0."""
    return Flows.of([(rank, 0, bytes * times, 0) for rank in range(1, ranks)])


def test_traffic_is_of_ranks_and_bytes(brought: None) -> None:
    gradwire.register(to_the_first)
    assert pattern_of("to_the_first(2)")(3, 5) == Flows([1, 2], [0, 0], 10)
    assert in_groups(pattern_of("to_the_first"), 4, 2, 5) == Flows([1, 3], [0, 2], 5)
    assert pattern_of("ring")(4, 8) == ring(4, 8)


def test_families_of_functions_have_no_classes(brought: None) -> None:
    for member in (str, Fabric):
        assert not any(family.takes(member) for family in families.ALL)
