"""The seam: which room does the work, that rooms are alike, and that only `room_of` chooses."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import torch

import gradwire.kernels.torch as twins
from gradwire import kernels
from gradwire.errors import KernelError
from gradwire.kernels import (
    cast,
    cpu,
    instruction_set,
    is_finite,
    native,
    new_status,
    rooms,
    use,
)
from gradwire.kernels.rooms import exact_room_of, room_of
from gradwire.kernels.status import subtract
from gradwire.kernels.table import Room

HOME = "gradwire.kernels"
MAY_NAME_A_ROOM = {
    f"{HOME}.rooms",
    "gradwire.bench.kernels",  # twins compete in it
    "gradwire.bench.rooms",  # it compares rooms
    "gradwire.feedback._adam_encoder",  # the slow composition uses parts of a twin
}
ROOT = Path(rooms.__file__).parents[1]
SOURCE = {
    ".".join(("gradwire", *path.relative_to(ROOT).with_suffix("").parts)): path.read_text("utf-8")
    for path in sorted(ROOT.rglob("*.py"))
}
"""The source of each module."""
FACES = {
    module
    for module, text in SOURCE.items()
    if module.rpartition(".")[0] == HOME and re.search(r"rooms import .*\broom_of\b", text)
}
"""Modules that call `room_of`."""
SETS = pytest.mark.parametrize("name", native.available_sets())


def elsewhere(device: str, is_meta: bool = False, number: int = 0) -> Any:
    """The attributes that `room_of` reads of a tensor that is not on the CPU."""
    of = SimpleNamespace(type=device, index=number)
    return SimpleNamespace(is_cpu=False, is_meta=is_meta, device=of, shape=(4,))


OPERATIONS = sorted(name for name in vars(Room) if not name.startswith("_"))


@pytest.mark.parametrize("of", ["cpu", "torch", "cuda"])
def test_rooms_have_the_operations_of_the_table_and_no_others(of: str) -> None:
    if of == "cuda":
        pytest.importorskip("triton")
    assert len(OPERATIONS) > 40
    room = importlib.import_module(f"{HOME}.{of}")
    assert sorted(name for name, _ in inspect.getmembers(room, inspect.isfunction)) == OPERATIONS


@pytest.mark.parametrize("of", ["cpu", "torch", "cuda"])
def test_operations_take_and_give_what_the_table_says(of: str) -> None:
    """mypy checks this too, but may miss it if only a file in a room has changed."""
    if of == "cuda":
        pytest.importorskip("triton")
    room: Any = importlib.import_module(f"{HOME}.{of}")
    for name in OPERATIONS:
        asked, own = getattr(Room, name), getattr(room, name)
        parameters = list(inspect.signature(asked).parameters.values())[1:]
        inspect.signature(own).bind(
            *(p for p in parameters if p.kind is p.POSITIONAL_ONLY),
            **{p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY},
        )
        wanted, found = (list(get_type_hints(f).items()) for f in (asked, own))
        assert dict(wanted)["return"] == dict(found)["return"], name
        by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        assert [dict(wanted)[p] for p in by_place] == [t for _, t in found[: len(by_place)]], name


@SETS
def test_the_cpu_has_its_room_unless_the_twins_are_asked_for(name: str) -> None:
    with use(name):
        assert room_of() is (twins if name == native.TWIN else cpu)
        assert room_of(None, torch.ones(2)) is room_of()
        assert exact_room_of(torch.ones(2)) is room_of()
        assert exact_room_of(torch.ones(2).double()) is twins


@SETS
def test_another_device_has_a_room_by_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with use(name):
        assert room_of(elsewhere("xpu")) is twins
        third: Any = SimpleNamespace()
        monkeypatch.setitem(rooms.ROOMS, "xpu", third)
        assert room_of(elsewhere("xpu")) is (twins if name == native.TWIN else third)
        assert room_of(None, elsewhere("xpu")) is room_of(elsewhere("xpu"))
        assert room_of(torch.ones(2)) is room_of()


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    rooms._in_triton.cache_clear()
    yield
    rooms._in_triton.cache_clear()


@SETS
@pytest.mark.usefixtures("_asked_anew")
def test_cuda_has_its_room_where_triton_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(rooms, "_why_not", lambda number: "")
    with use(name):
        found: Any = room_of(elsewhere("cuda"))
        own = importlib.import_module(f"{HOME}.cuda")
        assert found is (twins if name == native.TWIN else own)


@pytest.mark.usefixtures("_asked_anew")
def test_a_gpu_needs_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an extension, tensors of the CPU go to the twins, and those of CUDA do not."""
    pytest.importorskip("triton")
    monkeypatch.setattr(rooms, "_why_not", lambda number: "")
    with use(native.TWIN):
        assert room_of(elsewhere("cuda")) is twins, "as was asked"
        monkeypatch.setattr(native.chosen, "asked", False)
        own = importlib.import_module(f"{HOME}.cuda")
        found: Any = room_of(elsewhere("cuda"))
        assert found is own
        assert room_of(torch.ones(2)) is twins
        with use(native.TWIN):
            assert room_of(elsewhere("cuda")) is twins, "as was asked"
        assert room_of(elsewhere("cuda")) is own, "as nobody asked before"


@pytest.mark.usefixtures("_asked_anew")
def test_where_it_does_not_torch_works_after_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_why_not", lambda number: "the device is too old")
    with use("plain"):
        with pytest.warns(RuntimeWarning, match="CUDA kernels cannot run here.*too old"):
            assert room_of(elsewhere("cuda")) is twins
        assert room_of(elsewhere("cuda")) is twins, "and says so once"


@pytest.mark.usefixtures("_asked_anew")
def test_without_triton_torch_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(rooms, "_why_not", lambda number: "")
    monkeypatch.setattr(rooms, "importlib", SimpleNamespace(import_module=missing))
    with use("plain"), pytest.warns(RuntimeWarning, match="Triton cannot be imported.*install"):
        assert room_of(elsewhere("cuda")) is twins


@pytest.mark.parametrize(
    ("hip", "capability", "said"),
    [(None, (9, 0), ""), (None, (7, 5), "capability 8.0 or more, and the device has 7.5"),
     ("6.2", (9, 0), "ROCm")],
)  # fmt: skip
def test_old_devices_and_others_are_refused(
    hip: str | None, capability: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
    assert said in rooms._why_not()
    assert bool(said) == bool(rooms._why_not())


@pytest.mark.usefixtures("_asked_anew")
def test_each_device_of_a_machine_is_asked_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device's own capability decides, whichever device is current."""
    pytest.importorskip("triton")
    capabilities = {0: (7, 5), 1: (9, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    own: Any = importlib.import_module(f"{HOME}.cuda")
    with use("plain"):
        assert room_of(elsewhere("cuda", number=1)) is own
        with pytest.warns(RuntimeWarning, match="the device has 7.5"):
            assert room_of(elsewhere("cuda", number=0)) is twins


def test_the_interpreter_is_asked_for_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(KernelError, match="set TRITON_INTERPRET=1"), use("triton"):
        pass


def test_nothing_imports_triton_before_it_is_needed() -> None:
    """Importing Triton takes seconds, and it may not be installed."""
    code = "import sys, gradwire, gradwire.kernels; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@SETS
def test_nothing_is_no_room(name: str) -> None:
    with use(name), pytest.raises(KernelError, match="meta device, which has none"):
        room_of(torch.ones(2), torch.empty(4, device="meta"))


@pytest.mark.parametrize("operation", ["is_finite", "cast"])
def test_a_face_leaves_the_work_to_the_room(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def noted(*given: object) -> bool:
        asked.append(given)
        return True

    for room in (cpu, twins):
        monkeypatch.setattr(room, operation, noted)
    x = torch.full((3,), torch.nan)
    is_finite(x) if operation == "is_finite" else cast(x, x)
    assert len(asked) == 1
    assert asked[0][0] is x


@cache
def imported(text: str) -> set[str]:
    """The modules, and the names taken from modules, that a source imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def in_a_room(name: str) -> bool:
    return re.match(rf"{HOME}\.(cpu|cuda|torch)\b", name) is not None


def test_nobody_else_names_a_room() -> None:
    named = {m for m, text in SOURCE.items() if any(map(in_a_room, imported(text)))}
    assert {m for m in named if not in_a_room(m)} == MAY_NAME_A_ROOM


def test_rooms_do_not_know_the_faces() -> None:
    assert len(FACES) > 15
    for module in filter(in_a_room, SOURCE):
        known = {name.rpartition(".")[0] for name in imported(SOURCE[module])}
        assert not FACES & known, module


def test_what_is_in_use_is_known_to_the_seam_and_the_cpus_room() -> None:
    for module, text in SOURCE.items():
        if f"{HOME}.native.chosen" in imported(text):
            assert module.startswith((f"{HOME}.rooms", f"{HOME}.cpu")), module


def test_what_is_in_use_is_told() -> None:
    found = native.core_in_use()
    assert (found is None) == (instruction_set() == native.TWIN)
    if found is not None:
        assert found[0].instruction_sets()[found[1]] == instruction_set()


PLACES = torch.arange(4, dtype=torch.int32)
READS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "accumulate": lambda x, out: kernels.accumulate(out, [PLACES], [x], 2.0),
    "add": lambda x, out: kernels.add(out, PLACES, x, 2.0),
    "copy_unless": lambda x, out: kernels.copy_unless(new_status(), x, out),
    "gather_stripes": lambda x, out: kernels.gather_stripes(x.view(4, 1), PLACES, (0, 1), out),
    "merge_streams": lambda x, out: kernels.merge_streams(
        4, [PLACES], [x], 1.0, PLACES.clone(), out
    ),
    "place_stream": lambda x, out: kernels.place_stream(out, PLACES, x),
    "scatter_stripes": lambda x, out: kernels.scatter_stripes(out.view(4, 1), PLACES, (0, 1), x),
    "split_stream": lambda x, out: kernels.split_stream(PLACES, x, 2, 0, PLACES.clone(), out),
    "subtract": lambda x, out: subtract(torch.ones(4), x, out, new_status()),
    "sum_rows": lambda x, out: out.copy_(
        kernels.sum_rows([PLACES], [x.view(4, 1)], 1.0, torch.float32)[1].view(4)
    ),
    "top_of_two": lambda x, out: kernels.top_of_two(
        4, PLACES, x, PLACES, x, 4, PLACES.clone(), out
    ),
}


@SETS
@pytest.mark.parametrize("operation", READS)
def test_no_result_requires_gradients(name: str, operation: str) -> None:
    """Outside of hooks of backward, too, where torch records what is computed."""
    x, out, wanted = torch.arange(1.0, 5.0), torch.zeros(4), torch.zeros(4)
    with use(name):
        READS[operation](x, wanted)
        READS[operation](x.clone().requires_grad_(), out)
    assert not out.requires_grad
    assert torch.equal(out, wanted)
    assert out.any()
