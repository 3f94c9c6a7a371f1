"""Families of members: gradwire's own, those of other packages, and those a program registers.

    gradwire.compressors.MEMBERS ──────────┐
    entry points "gradwire.compressors" ───┼─► name -> member
    gradwire.register(Member) ─────────────┘

A family imports gradwire's own members on its first use, and searches installed packages when a
name is none of these.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from gradwire.errors import GradwireError, NetworkError, StrategyError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
_PROGRAM = "this program"


class Family(Mapping[str, Any]):
    """Members by their names. Gradwire's own come first; no other may have one of their names.

    name: of the family; its entry points are the group "gradwire.<name>". home: gradwire's package
    with MEMBERS, and BASE, which each derives from or returns. It may have `trial`, which tries a
    member on something small and returns what is wrong, or None. kind: what a member is called.
    error: raised if another package's member breaks a rule.
    """

    def __init__(self, name: str, home: str, kind: str, error: type[GradwireError]) -> None:
        self.name, self.kind, self._home, self._error = name, kind, home, error
        self._others: dict[str, Any] = {}
        self._packages: dict[str, str] = {}
        self._tried: set[Any] = set()

    # -- as a mapping ----------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        if name in self.own:
            return self.own[name]
        if name not in self._others:
            self._load(name)
        return self._others[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        for name in self._offers:
            if name not in self._others:
                try:
                    self._load(name)
                except GradwireError as error:  # concerns one member alone
                    warnings.warn(str(error), UserWarning, stacklevel=3)
        yield from self._others

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self._others or name in self._offers

    # -- members from outside --------------------------------------------------------------

    def takes(self, member: object) -> bool:
        """Whether it is a member of this family, by its class or its return annotation."""
        if isinstance(member, type):
            return not self._is_of_functions and issubclass(member, self.base)
        if not self._is_of_functions or not inspect.isfunction(member):
            return False
        returned = inspect.signature(member).return_annotation
        return bool(getattr(returned, "__name__", returned) == self.base.__name__)

    def add(self, member: Any, package: str = "", name: str = "") -> None:
        """Add another package's member. package: its name, for errors; "": that of its module.

        Raises:
            GradwireError: the family's error, if it is no member, or its name is gradwire's or
                another package's.
        """
        package = package or member.__module__.partition(".")[0]
        name = name or _name_of(member)
        rule = self._broken_rule(member, name)
        if rule is None and name in self.own:
            rule = f"its name must be unique, and gradwire has a {self.kind} '{name}'"
        if rule is None and self._packages.get(name, package) != package:
            rule = f"its name must be unique, and {_said(self._packages[name])} has '{name}', too"
        if rule is not None:
            raise self._error(
                f"{_said(package)} offers '{name}' as a {self.kind}: {rule}. Correct it, "
                "tell its authors, or uninstall it."
            )
        self._others[name], self._packages[name] = member, package

    def whose(self, name: str) -> str | None:
        """Returns its owner, as errors name it: "package …" or "this program"; None: gradwire."""
        package = self._packages.get(name)
        return None if package is None else _said(package)

    def made(self, member: T) -> T:
        """Returns a member that was just made; another package's is tried first.

        Raises:
            GradwireError: the family's error, naming the package and what is wrong.
        """
        package = self._packages.get(getattr(member, "name", ""))
        trial: Callable[[Any], str | None] | None = getattr(self._package, "trial", None)
        if package is None or trial is None:
            return member
        try:
            if member in self._tried:
                return member
            wrong = trial(member)
        except Exception as error:
            wrong = f"it raised {type(error).__name__}: {error}"
        if wrong is not None:
            raise self._error(
                f"'{member}', a {self.kind} of {_said(package)}, breaks the contract of "
                f"its family: {wrong}. Correct it, tell its authors, or use another."
            )
        self._tried.add(member)
        return member

    @cached_property
    def base(self) -> type:
        """The class that members derive from, or return."""
        base: type = self._package.BASE
        return base

    @cached_property
    def own(self) -> dict[str, Any]:
        """Gradwire's own members by their names."""
        return {_name_of(member): member for member in self._package.MEMBERS}

    # -- inside ----------------------------------------------------------------------------

    @cached_property
    def _package(self) -> Any:
        return import_module(self._home)

    @cached_property
    def _is_of_functions(self) -> bool:
        return not isinstance(self._package.MEMBERS[0], type)

    @cached_property
    def _offers(self) -> dict[str, EntryPoint]:
        """The members that other packages offer; warns of those whose name is taken."""
        from importlib.metadata import entry_points  # its import costs more than all else here

        found: dict[str, EntryPoint] = {}
        for offer in entry_points(group=f"gradwire.{self.name}"):
            if offer.name in self.own or offer.name in found:
                whose = "gradwire" if offer.name in self.own else _package_of(found[offer.name])
                warnings.warn(
                    f"package {_package_of(offer)} offers '{offer.name}' as "
                    f"a {self.kind}, but {whose} has one of that name; the package's is "
                    "ignored. Tell its authors, or uninstall it.",
                    UserWarning,
                    stacklevel=3,
                )
            else:
                found[offer.name] = offer
        return found

    def _load(self, name: str) -> None:
        """Load another package's member; KeyError if no package offers it."""
        offer = self._offers[name]
        try:
            member = offer.load()
        except Exception as error:
            raise self._error(
                f"package {_package_of(offer)} offers '{name}' as a {self.kind}, but it "
                f"cannot be loaded: {type(error).__name__}: {error}. Tell its authors, or "
                "uninstall it."
            ) from error
        self.add(member, _package_of(offer), name)

    def _broken_rule(self, member: Any, name: str) -> str | None:
        is_function = self._is_of_functions
        if is_function and not inspect.isfunction(member):
            return f"it must be a function that returns a {self.base.__name__}"
        if not is_function and not self.takes(member):
            base = f"{self.base.__module__}.{self.base.__name__}"
            return f"it must be a class that derives from {base}"
        if not name.isidentifier() or name != _name_of(member):
            return (
                "its name must be an identifier, the same as its entry point's; got "
                f"{_name_of(member)!r}"
            )
        if is_function:
            return None
        if inspect.isabstract(member):
            return f"it must define {', '.join(sorted(member.__abstractmethods__))}"
        made_so = getattr(member, "__dataclass_params__", None)
        if made_so is None or not (made_so.frozen and made_so.eq):
            return "it must be a frozen dataclass, whose fields are its parameters"
        return None


COMPRESSORS = Family("compressors", "gradwire.compressors", "compressor", StrategyError)
FEEDBACK = Family("feedback", "gradwire.feedback", "feedback", StrategyError)
COLLECTIVES = Family("collectives", "gradwire.collectives", "collective", StrategyError)
ROUTING = Family("routing", "gradwire.network.routing", "routing scheme", NetworkError)
TOPOLOGIES = Family("topologies", "gradwire.network.builders", "topology", NetworkError)
EXPORTS = Family("exports", "gradwire.network.exports", "format", NetworkError)
TRAFFIC = Family("traffic", "gradwire.network.patterns", "traffic", NetworkError)
STEPS = Family("steps", "gradwire.network.parallelism", "step", NetworkError)
ALL = ROUTING, TOPOLOGIES, TRAFFIC, STEPS, EXPORTS, COMPRESSORS, FEEDBACK, COLLECTIVES
"""All families; those that do not import torch come first."""


def outsiders(members: Iterable[Any]) -> str:
    """Returns which of a strategy's members other packages own, for errors; "" if none."""
    found = [
        f"'{member.name}' is of {whose}"
        for member in members if member is not None
        for family in ALL if family.takes(type(member))
        if (whose := family.whose(member.name)) is not None
    ]  # fmt: skip
    return "; ".join(found)


def register(member: T) -> T:
    """Register your own member in this process: a compressor, a feedback, a collective, a routing
    scheme (a class), a topology (a function that returns a Fabric), traffic (a function of ranks
    and bytes that returns Flows), a step (one that returns a Workload), or a format of paths (one
    that takes Routes and returns a str).

    Returns the member, so that it can be used as a decorator. A function is known by the return
    type in its annotation; without one it is taken for a topology. All ranks must register the
    same members, before they attach. A package that others install uses an entry point instead
    (docs/extend.md).

    Raises:
        StrategyError, NetworkError: it is no member, or has a name that is taken.
    """
    family = next((own for own in ALL if own.takes(member)), None)
    if family is None and inspect.isfunction(member):
        family = TOPOLOGIES
    if family is None:
        raise StrategyError(
            "a member must be a class that derives from Compressor, Feedback or Collective of "
            "gradwire.strategy, or from gradwire.network.routing.Scheme, or a function that "
            f"returns a gradwire.network.Fabric; got {member!r}. Derive it from one of them."
        )
    family.add(member, package=_main(member))
    return member


def _main(member: Any) -> str:
    """Returns the package of a member; a notebook or script counts as "this program"."""
    package = str(member.__module__).partition(".")[0]
    return _PROGRAM if package == "__main__" or package not in sys.modules else package


def _name_of(member: Any) -> str:
    name = getattr(member, "name", None)
    return name if isinstance(name, str) else str(getattr(member, "__name__", member))


def _package_of(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist is not None else offer.value.partition(":")[0]


def _said(package: str) -> str:
    return package if package == _PROGRAM else f"package {package}"
