"""Chooses what runs on CPU tensors: an instruction set of gradwire._native, or the twins.

The extension checks nothing: `tensors` and the face of each kernel do, and only the cpu room,
which they call, may call the extension.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator

from gradwire.errors import KernelError
from gradwire.extension import TRITON, TWIN, VARIABLE, extension
from gradwire.kernels.core import Core

SETS = ("plain", "avx2", "avx512", "neon")  # of any processor; the extension tells its own


class Choice:
    """The choice of what runs on CPU tensors: resolved at the first use, changed by `use`.

    name: one of SETS, TWIN or TRITON; None before the first use. asked: whether that name was
    requested, by `use` or the environment. core and number: the extension, and the number of the
    instruction set that was last chosen from SETS; the cpu room reads them.
    """

    core: Core
    number: int

    def __init__(self) -> None:
        self.found: Core | None = None
        self.name: str | None = None
        self.asked = False

    def resolve(self) -> str:
        """Returns the name, and determines it at the first call; warns if the extension is missing
        and the environment does not accept that."""
        if self.name is None:
            self.found = extension()
            wanted = os.environ.get(VARIABLE)
            if wanted is not None:
                return self.take(_checked(wanted, self.found, VARIABLE))
            if self.found is None:
                _warn_once()
            best = available_sets(self.found)[-1]
            self.take(best)
            self.asked = False
            return best
        return self.name

    def take(self, name: str) -> str:
        """Makes this the choice from now on; the name is known to be available."""
        if name in SETS and self.found is not None:
            self.core, self.number = self.found, self.found.instruction_sets().index(name)
        self.name, self.asked = name, True
        return name


chosen = Choice()


def _warn_once() -> None:
    warnings.warn(
        "gradwire's native kernels are not installed, so PyTorch operations run instead, with the "
        "same results, 20 to 100 times slower on CPU tensors; reinstall gradwire where there is a "
        f"C++ compiler, or set {VARIABLE}={TWIN} to accept this",
        RuntimeWarning,
        stacklevel=4,
    )


def _checked(name: str, core: Core | None, source: str) -> str:
    if name == TRITON:
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise KernelError(
                f"{source} requests {TRITON!r}, which runs on CPUs only in Triton's interpreter, "
                "for tests; set TRITON_INTERPRET=1 before anything imports triton"
            )
        return name
    if name != TWIN and name not in SETS:
        names = ", ".join((*SETS, TWIN))
        raise KernelError(f"{source} must be one of {names}, not {name!r}; correct or remove it")
    available = available_sets(core)
    if name not in available:
        raise KernelError(
            f"{source} requests {name!r}, which this installation and processor do not have; "
            f"choose one of {', '.join(available)}"
        )
    return name


def available_sets(core: Core | None = None) -> list[str]:
    """Returns the names that `use` accepts here, slowest first."""
    core = core or chosen.found or extension()
    return [TWIN] if core is None else [TWIN, *core.instruction_sets()]


def instruction_set() -> str:
    """Returns what CPU tensors run on: "avx512", "avx2", "neon", "plain", "twin" (torch), or
    "triton"."""
    return chosen.resolve()


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Runs the kernels on one instruction set in the whole process, for tests and benchmarks.

    Raises KernelError when this machine does not have it.
    """
    if chosen.found is None:
        chosen.found = extension()
    before, asked = chosen.name, chosen.asked
    chosen.take(_checked(name, chosen.found, "use()"))
    try:
        yield
    finally:
        if before is None:
            chosen.name = None
        else:
            chosen.take(before)
            chosen.asked = asked


def core_in_use() -> tuple[Core, int] | None:
    """Returns the extension and the number of its instruction set, for benchmarks of the machine;
    None if the extension is not what runs."""
    return (chosen.core, chosen.number) if chosen.resolve() in SETS else None
