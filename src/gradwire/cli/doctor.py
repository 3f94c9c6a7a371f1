"""gradwire doctor: what is here, what works, how fast the network is, and what that means.

Alone it looks at this machine. Under torchrun it also measures the process group: every rank calls
it, rank 0 prints. Its exit code is 1 where nothing can be trained.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import textwrap
from pathlib import Path
from time import perf_counter
from typing import Any

from gradwire.cli.arguments import add_quiet
from gradwire.cli.progress import telling
from gradwire.errors import UsageError
from gradwire.progress import Progress, each, silent
from gradwire.report.terminal import plain

Facts = dict[str, dict[str, Any]]

PARAMETERS = 100_000_000
NONE = "none"
INSTALL_TORCH = "pip install 'torch>=2.11'"
MEASURE = "torchrun --nproc-per-node 2 -m gradwire doctor"
GAIN = "gradwire profile -- torchrun … train.py"
FAR_SECONDS = 0.01
"""From this latency of a small sum on, connections that begin slowly are felt."""
SLOW_START = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout")
    size = "size of the bandwidth test under torchrun, in megabytes (default: %(default)g)"
    parser.add_argument("--megabytes", type=float, default=64.0, metavar="X", help=size)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Looks at this machine, and prints what was found; returns the exit code. Raises
    UsageError."""
    if not 0.001 <= arguments.megabytes <= 100_000:
        raise UsageError(
            f"--megabytes must be from 0.001 to 100,000; got {arguments.megabytes:g}. Pass for "
            "example --megabytes 64."
        )
    for name in ("RANK", "WORLD_SIZE"):
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise UsageError(
                f"{name} must be a whole number, as torchrun sets it; got {value!r}. Unset it, or "
                f"run {MEASURE}."
            )
    with telling(arguments, "doctor") as progress:
        facts = _facts(arguments.megabytes, progress)
    if "network" in facts and int(os.environ["RANK"]) != 0:
        return 0
    facts["verdict"] = verdict(facts)
    print(json.dumps(facts, indent=2) if arguments.json else text(facts))
    return 0 if facts["verdict"]["ready"] else 1


def _facts(megabytes: float, progress: Progress) -> Facts:
    progress("loading torch")
    facts: Facts = {"machine": _machine(), "torch": _torch()}
    there = "missing" not in facts["torch"]
    if there:
        progress("kernels")
        facts["kernels"] = _kernels()
        facts["cuda"] = _cuda(progress)
    progress("network namespaces")
    facts["lab"] = _lab()
    if there and all(name in os.environ for name in _OF_TORCHRUN):
        facts["network"] = _network(megabytes, progress)
    return facts


def _machine() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "chosen interface": os.environ.get("GLOO_SOCKET_IFNAME", "the backend's choice"),
    }


def _torch() -> dict[str, Any]:
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
        return {"missing": str(error), "advice": INSTALL_TORCH}
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    return {
        "version": torch.__version__,
        "backends": [name for name, there in backends.items() if there],
        "cuda devices": torch.cuda.device_count(),
        "intra-op threads": torch.get_num_threads(),
        "advice": _thread_advice(torch.get_num_threads()),
    }


def _thread_advice(threads: int) -> str:
    if threads == 1:
        return NONE
    return "set OMP_NUM_THREADS=1 when ranks share the cores: more threads stall one another"


def _kernels() -> dict[str, Any]:
    from gradwire import kernels

    used = kernels.instruction_set()
    native = used != "twin"
    advice = (
        NONE if native else "the native kernels are not built: pip install with a C++ compiler"
    )
    return {"instruction set": used, "native": native, "advice": advice}


def _cuda(progress: Progress) -> dict[str, Any]:
    """Returns which kernels run on the current device, and whether they give what the twins give.
    Takes a minute, most of it to compile them."""
    import torch

    if not torch.cuda.is_available():
        return {"device": NONE, "advice": NONE}
    from gradwire.bench.rooms import cases, difference, room_of_cuda
    from gradwire.kernels.rooms import why_no_triton

    major, minor = torch.cuda.get_device_capability()
    facts = {
        "device": torch.cuda.get_device_name(), "capability": f"{major}.{minor}",
        "gigabytes": round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1),
    }  # fmt: skip
    why = why_no_triton()
    if why:
        return {**facts, "kernels": "torch", "advice": why}
    tried = list(cases())
    compared = each(progress, "the GPU's kernels", tried)
    wrong = [said for case in compared if (said := difference(case, room_of_cuda(), "cuda"))]
    advice = f"report this, and set GRADWIRE_KERNELS=twin: {wrong[0]}" if wrong else NONE
    return {
        **facts, "kernels": "triton", "tried": len(tried), "wrong": len(wrong), "advice": advice,
    }  # fmt: skip


def _lab() -> dict[str, Any]:
    from gradwire.lab import available

    found = available()
    return {"namespaces": found.mode, "reason": found.reason or NONE}


def _network(megabytes: float, progress: Progress) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    if 0 < ranks <= rank:  # torch would wait for others for half an hour
        raise UsageError(
            f"RANK must be below WORLD_SIZE; got {rank} of {ranks}. Set both as torchrun does, or "
            f"run {MEASURE}."
        )
    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    progress("waiting for all ranks")
    try:
        dist.init_process_group("nccl" if cuda else "gloo")
    except (ValueError, RuntimeError) as error:
        asked = ", ".join(f"{name}={os.environ[name]}" for name in _OF_TORCHRUN)
        raise UsageError(
            f"all ranks must meet as torchrun's variables say; got {asked}: "
            f"{str(error).splitlines()[0]:.200}. Unset these to look at this machine alone, or "
            f"run {MEASURE}."
        ) from error
    try:
        return measured(megabytes, torch.device("cuda" if cuda else "cpu"), progress)
    finally:
        dist.destroy_process_group()


def measured(megabytes: float, device: Any, progress: Progress = silent) -> dict[str, Any]:
    """Measures the all-reduce of the default process group: latency and bandwidth. Collective.
    UsageError on all ranks where one has no memory for it."""
    import torch
    import torch.distributed as dist

    from gradwire.runtime.process_groups import exchange_text

    world = dist.get_world_size()
    small, large, lacks = torch.ones(1, device=device), torch.empty(0, device=device), ""
    try:
        large = torch.ones(int(megabytes * 250_000), device=device)
    except (MemoryError, RuntimeError) as error:
        lacks = str(error).splitlines()[0]
    assert dist.group.WORLD is not None
    for rank, why in enumerate(exchange_text(lacks, dist.group.WORLD, device)):
        if why:
            raise UsageError(
                f"every rank needs memory for --megabytes; rank {rank} has none for "
                f"{megabytes:g} MB: {why:.200}. Pass less."
            )
    latency_seconds = _time(small, 20, progress, "latency")
    seconds = _time(large, 3, progress, "bandwidth")
    bits = 2 * (world - 1) / world * large.numel() * 32
    hosts = exchange_text(socket.gethostname(), dist.group.WORLD, device)
    return {
        "backend": dist.get_backend(),
        "ranks": world,
        "hosts": len(set(hosts)),
        "all-reduce latency_seconds": latency_seconds,
        "all-reduce bits_per_second": bits / seconds,
        "advice": _far_advice(latency_seconds),
    }


def _far_advice(latency_seconds: float) -> str:
    """Returns how far connections need not begin slowly after each pause, if they do."""
    try:
        slow = latency_seconds >= FAR_SECONDS and SLOW_START.read_text().strip() != "0"
    except OSError:  # another system
        slow = False
    if not slow:
        return NONE
    return "sysctl -w net.ipv4.tcp_slow_start_after_idle=0 keeps far links fast after a pause"


def _time(data: Any, repeats: int, progress: Progress, stage: str) -> float:
    """Returns the median seconds of one all-reduce."""
    import torch
    import torch.distributed as dist

    times = []
    for _ in each(progress, stage, range(repeats + 2), lambda number: ""):
        dist.barrier()
        began = perf_counter()
        dist.all_reduce(data)
        if data.is_cuda:
            torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return sorted(times[2:])[repeats // 2]


def verdict(facts: Facts) -> dict[str, Any]:
    """Returns the verdict. ready: whether anything can be trained. fp32_seconds: of a step's
    exchange of 100 M parameters, by the measured bandwidth; None: not measured. says: both, in
    words. next: the command to run now."""
    if "missing" in facts["torch"]:
        return _verdict(False, None, "gradwire cannot work here: torch is missing", INSTALL_TORCH)
    network = facts.get("network")
    if network is None or network["ranks"] == 1:
        alone = "one rank alone exchanges nothing" if network else "the network was not measured"
        says = f"gradwire works here; {alone} (for other hosts: --nnodes and --rdzv-endpoint)"
        return _verdict(True, None, says, MEASURE)
    ranks = network["ranks"]
    bits = 2 * (ranks - 1) / ranks * PARAMETERS * 32
    seconds = bits / network["all-reduce bits_per_second"]
    says = (
        f"fp32 gradients of 100 M parameters cost {duration(seconds)} a step here, bf16 half of "
        "that. If the model's forward and backward take much longer, leave gradients "
        "uncompressed; if not, a profile shows what compression gains"
    )
    return _verdict(True, seconds, says, GAIN)


def _verdict(ready: bool, seconds: float | None, says: str, command: str) -> dict[str, Any]:
    return {"ready": ready, "fp32_seconds": seconds, "says": says, "next": command}


def text(facts: Facts) -> str:
    """Returns the facts in plain words, a line each, and the verdict."""
    lines = list[str]()
    for name, (title, lines_of) in _SECTIONS.items():
        told = lines_of(facts[name]) if name in facts else []
        if told:
            lines += [title, *(f"  {line}" for line in told)]
    return "\n".join(lines)


def _machine_lines(machine: dict[str, Any]) -> list[str]:
    return [
        f"Python {machine['python']} on {machine['system']}, {machine['cores']} cores",
        f"network interfaces: {', '.join(machine['interfaces'])}",
        f"messages go by {machine['chosen interface']}; GLOO_SOCKET_IFNAME names another",
    ]


def _torch_lines(torch: dict[str, Any]) -> list[str]:
    if "missing" in torch:
        return [f"missing: {torch['missing']}"]
    return [
        f"version {torch['version']}; backends: {', '.join(torch['backends']) or NONE}; "
        f"CUDA devices: {torch['cuda devices']}",
        f"threads of a process: {torch['intra-op threads']}",
        *_advice(torch),
    ]


def _kernel_lines(kernels: dict[str, Any]) -> list[str]:
    if not kernels["native"]:
        return ["in torch, many times slower than compiled ones", *_advice(kernels)]
    return [f"compiled; what they use of this processor: {kernels['instruction set']}"]


def _cuda_lines(cuda: dict[str, Any]) -> list[str]:
    if cuda["device"] == NONE:
        return []
    lines = [f"{cuda['device']}, capability {cuda['capability']}, {cuda['gigabytes']} GB"]
    if cuda["kernels"] == "torch":
        return [*lines, "by torch's operations, slower than kernels of its own", *_advice(cuda)]
    good = cuda["tried"] - cuda["wrong"]
    return [
        *lines,
        f"kernels in Triton: {good} of {cuda['tried']} cases right, to the bit",
        *_advice(cuda),
    ]


def _advice(section: dict[str, Any]) -> list[str]:
    return [] if section["advice"] == NONE else [section["advice"]]


def _lab_lines(lab: dict[str, Any]) -> list[str]:
    can = "cannot be made here" if lab["namespaces"] == "none" else "can be made here"
    return [can if lab["reason"] == NONE else f"{can}: {lab['reason']}"]


def _network_lines(network: dict[str, Any]) -> list[str]:
    ranks, hosts = network["ranks"], network["hosts"]
    lines = [f"ranks: {ranks}, on hosts: {hosts}, by {network['backend']}"]
    if ranks > 1:
        rate = network["all-reduce bits_per_second"]
        latency = duration(network["all-reduce latency_seconds"])
        lines.append(f"the sum of one number takes {latency}")
        lines.append(f"large sums run at {plain(rate / 1e9)} Gbit/s from each rank")
    return [*lines, *_advice(network)]


def _verdict_lines(verdict: dict[str, Any]) -> list[str]:
    lines = textwrap.wrap(f"{verdict['says']}:", 95, break_on_hyphens=False)
    return [*lines, f"  {verdict['next']}"]


def duration(seconds: float) -> str:
    """Writes a duration in a unit that fits."""
    unit, size = next((u for u in _UNITS if seconds >= u[1]), _UNITS[-1])
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_SECTIONS = {
    "machine": ("this machine", _machine_lines),
    "torch": ("torch", _torch_lines),
    "kernels": ("kernels", _kernel_lines),
    "cuda": ("the GPU", _cuda_lines),
    "lab": ("emulated networks (gradwire lab, gradwire demo)", _lab_lines),
    "network": ("the network between ranks", _network_lines),
    "verdict": ("verdict", _verdict_lines),
}
