"""Other people's suites for DistributedDataParallel, without gradwire and with it in every DDP.

python benchmarks/peers/main.py torch            # needs expecttest, as torch's own tests do
python benchmarks/peers/main.py accelerate
python benchmarks/peers/main.py torch --only join   # of a name that holds this; writes no file

Nothing of theirs is copied: torch's wheel holds its distributed tests, accelerate's its scripts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

import gradwire
from gradwire.training.ddp import gradwire_hook

RANKS, STRATEGY = 2, "none | allreduce"
SCRIPTS = ("test_script", "test_sync", "test_ddp_comm_hook", "test_distributed_data_loop")
Results = dict[str, str]
"""Maps a case to "passed", "skipped: why" or "failed: why"."""
Cases = dict[str, Callable[[], Results]]
"""Functions to run, by a name that --only may select; a script makes many cases."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", choices=("torch", "accelerate"))
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    cases = {"torch": torchs_own, "accelerate": accelerates}[arguments.suite]()
    without, with_gradwire = dict[str, str](), dict[str, str]()
    try:
        for name in (name for name in cases if arguments.only in name):
            without |= cases[name]()
            with attached_ddp():
                with_gradwire |= cases[name]()
    except KeyboardInterrupt:
        print(f"interrupted after {len(with_gradwire)} cases")
    report(without, with_gradwire)
    if not arguments.only:
        version = importlib.import_module(arguments.suite).__version__
        found = {
            "suite": arguments.suite, "version": version, "torch": torch.__version__,
            "strategy": STRATEGY, "ranks": RANKS, "date": time.strftime("%Y-%m-%d"),
            "without": without, "with": with_gradwire,
        }  # fmt: skip
        path = Path(__file__).parent / "results" / f"{arguments.suite}.json"
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


def report(without: Results, with_gradwire: Results) -> None:
    """Prints counts, and the cases whose results differ."""
    for title, found in (("without", without), ("with gradwire", with_gradwire)):
        counts = Counter(result.split(":")[0] for result in found.values())
        print(
            f"{title}: " + ", ".join(f"{counts[k]} {k}" for k in ("passed", "failed", "skipped"))
        )
    for case in sorted(without | with_gradwire):
        one, other = without.get(case, "not reached"), with_gradwire.get(case, "not reached")
        if one.split(":")[0] != other.split(":")[0]:
            print(f"- {case}\n    without: {one}\n    with:    {other}")


@contextlib.contextmanager
def attached_ddp() -> Iterator[None]:
    """Attaches gradwire to every DDP at the end of its constructor; forked processes inherit
    that."""
    construct = DistributedDataParallel.__init__
    register = DistributedDataParallel.register_comm_hook

    def constructed(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        gradwire.attach(self, STRATEGY, timeout_seconds=60.0)

    def registered(self: DistributedDataParallel, state: object, hook: Any) -> None:
        if hook is not gradwire_hook:
            raise unittest.SkipTest("a hook of its own, and DDP has one")
        register(self, state, hook)

    def built_in(*_: Any) -> None:
        raise unittest.SkipTest("a hook of its own, and DDP has one")

    with mock.patch.multiple(
        DistributedDataParallel, __init__=constructed, register_comm_hook=registered,
        _register_builtin_comm_hook=built_in,
    ):  # fmt: skip
        yield


# -- torch -------------------------------------------------------------------------------------


def torchs_own() -> Cases:
    """Returns torch's distributed tests that use DDP, each in processes of its own."""
    suite = torch_suite()
    names = filter(suite.speaks_of_ddp, unittest.TestLoader().getTestCaseNames(suite))
    return {name: partial(run_test, suite, name) for name in sorted(names)}


def run_test(suite: Any, name: str) -> Results:
    result = unittest.TestResult()
    with on_processors():
        suite(name).run(result)
    print(f"{name}: {outcome(result)}", file=sys.stderr, flush=True)
    return {name: outcome(result)}


def torch_suite() -> Any:
    """Returns TestDistBackend over Gloo, whose ranks are forked, so that they inherit patches made
    here."""
    os.environ.update(
        BACKEND="gloo", WORLD_SIZE=str(RANKS), TEMP_DIR=tempfile.mkdtemp(),
        MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", INIT_METHOD="env://",
    )  # fmt: skip
    common: Any = importlib.import_module("torch.testing._internal.common_distributed")
    common.TIMEOUT_DEFAULT = 120
    for needs_gpus in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu"):
        setattr(common, needs_gpus, lambda *_, **__: lambda test: test)
    common.skip_if_no_gpu = lambda test: test
    theirs = importlib.import_module("torch.testing._internal.distributed.distributed_test")

    class Suite(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        def _spawn_processes(self) -> None:
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def speaks_of_ddp(cls, name: str) -> bool:
            source = inspect.getsource(inspect.unwrap(getattr(cls, name)))
            return bool(re.search(r"ddp|DistributedDataParallel", f"{name} {source}"))

    return Suite


class Processors(TorchFunctionMode):
    """Redirects requests for a GPU to the CPU: most of these tests use GPUs in no other way."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.Tensor.cuda, torch.Tensor.to) and (args[1:] or kwargs):
            args = (args[0], *(CPU if is_gpu(x) else x for x in args[1:]))
        options = {k: CPU if k == "device" and is_gpu(x) else x for k, x in (kwargs or {}).items()}
        return args[0] if function is torch.Tensor.cuda else function(*args, **options)


CPU = torch.device("cpu")


def is_gpu(place: Any) -> bool:
    name = str(getattr(place, "type", place))
    return (isinstance(place, int) and not isinstance(place, bool)) or name.startswith("cuda")


@contextlib.contextmanager
def on_processors() -> Iterator[None]:
    """Lets tests that put a model on the GPU of its rank run on the CPU."""
    construct, move = DistributedDataParallel.__init__, nn.Module.to

    def constructed(self: Any, module: nn.Module, *_: Any, **kwargs: Any) -> None:
        kwargs = {k: x for k, x in kwargs.items() if k not in ("device_ids", "output_device")}
        construct(self, module, **kwargs)

    def moved(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        kwargs = {k: CPU if k == "device" and is_gpu(x) else x for k, x in kwargs.items()}
        return move(self, *(CPU if is_gpu(x) else x for x in args), **kwargs)

    # One function for each, because dynamo, which accelerate imports, needs them to differ.
    cuda = {f: lambda *_, **__: 0 for f in ("set_device", "synchronize", "current_device")}
    with (
        mock.patch.object(DistributedDataParallel, "__init__", constructed),
        mock.patch.multiple(nn.Module, to=moved, cuda=lambda self, *_: self),
        mock.patch.multiple(torch.cuda, **cuda),
        Processors(),
    ):
        yield


def outcome(result: unittest.TestResult) -> str:
    for _, why in (*result.errors, *result.failures):
        return f"failed: {last_error(why)}"
    return f"skipped: {result.skipped[0][1]}" if result.skipped else "passed"


def last_error(trace: str) -> str:
    """Returns the line that names the error; a parent process prints its children's errors before
    its own."""
    errors = [line for line in trace.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    told = [line for line in errors if not line.startswith("RuntimeError: Process")]
    return (told or errors or trace.splitlines() or ["?"])[0][:300]


# -- accelerate --------------------------------------------------------------------------------


def accelerates() -> Cases:
    """Returns each check of accelerate's scripts, by its name and the number of its call."""
    importlib.import_module("accelerate")
    return {script: partial(run_script, script) for script in SCRIPTS}


def run_script(script: str, limit_seconds: float = 300.0) -> Results:
    """Returns rank 0's results, without the checks that were not reached in time."""
    context, folder = multiprocessing.get_context("fork"), Path(tempfile.mkdtemp())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [context.Process(target=rank_of, args=(script, r, port, folder)) for r in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(limit_seconds)
        process.kill()
    file = folder / "0"
    lines = file.read_text().splitlines() if file.exists() else []
    found = dict(json.loads(line) for line in lines)
    print(f"{script}: {len(found)} cases", file=sys.stderr, flush=True)
    return found


def as_on_gpus(script: Any) -> None:
    """Makes DDP on CPUs do what the script, and Join in accelerate, do on several GPUs only."""
    accelerate: Any = importlib.import_module("accelerate")
    accelerate.Accelerator.multi_device = property(lambda self: True)
    kinds = {kind.name: kind for kind in accelerate.DistributedType}
    script.DistributedType = SimpleNamespace(**{**kinds, "MULTI_GPU": kinds["MULTI_CPU"]})
    torch.cuda.device_count = lambda: RANKS


def rank_of(script: str, rank: int, port: int, folder: Path) -> None:
    """Runs the script's main; records a check that fails, and continues with the next one."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    theirs = importlib.import_module(f"accelerate.test_utils.scripts.{script}")
    as_on_gpus(theirs)
    calls, depth = Counter[str](), [0]

    def noted(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if depth[0]:
                return check(*args, **kwargs)
            calls[name] += 1
            depth[0], result = 1, "passed"
            try:
                check(*args, **kwargs)
            except unittest.SkipTest as skipped:
                result = f"skipped: {skipped}"
            except Exception:
                result = f"failed: {last_error(traceback.format_exc())}"
            depth[0] = 0
            with (folder / str(rank)).open("a") as file:
                file.write(json.dumps([f"{script}.{name} {calls[name]}", result]) + "\n")
            return None

        return run

    for name, check in list(vars(theirs).items()):
        if inspect.isfunction(check) and re.search(r"^test_|^check_seed|_check$", name):
            setattr(theirs, name, noted(name, check))
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    with contextlib.redirect_stdout(nowhere), on_processors():
        theirs.main()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
