"""gradwire doctor: what is here, what works, and how fast the network is.

Alone it looks at this machine. Under torchrun it also measures the process group: every rank calls
it, rank 0 prints.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
from time import perf_counter
from typing import Any

Facts = dict[str, dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument(
        "--megabytes", type=float, default=64.0, help="size of the bandwidth test (64)"
    )


def run(arguments: argparse.Namespace) -> int:
    facts = {"machine": _machine(), "torch": _torch(), "kernels": _kernels(), "lab": _lab()}
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        facts["network"] = _network(arguments.megabytes)
        if int(os.environ["RANK"]) != 0:
            return 0
    print(json.dumps(facts, indent=2) if arguments.json else _text(facts))
    return 0


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "chosen interface": os.environ.get("GLOO_SOCKET_IFNAME", "the backend's choice"),
    }


def _torch() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

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
        return "none"
    return "set OMP_NUM_THREADS=1 when ranks share the cores: more threads stall one another"


def _kernels() -> dict[str, Any]:
    from gradwire import kernels

    used = kernels.instruction_set()
    native = used != "twin"
    advice = "none" if native else "the native part is not built: pip install with a C++ compiler"
    return {"instruction set": used, "native": native, "advice": advice}


def _lab() -> dict[str, Any]:
    from gradwire.lab import available

    found = available()
    return {"namespaces": found.mode, "reason": found.reason or "none"}


def _network(megabytes: float) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from gradwire.runtime.process_groups import exchange_text

    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda" if cuda else "cpu")
    world = dist.get_world_size()
    small, large = (
        torch.ones(1, device=device),
        torch.ones(int(megabytes * 250_000), device=device),
    )
    latency_seconds = _time(small, 20)
    seconds = _time(large, 3)
    bits = 2 * (world - 1) / world * large.numel() * 32
    assert dist.group.WORLD is not None
    hosts = exchange_text(socket.gethostname(), dist.group.WORLD, device)
    backend = dist.get_backend()
    dist.destroy_process_group()
    return {
        "backend": backend,
        "ranks": world,
        "hosts": len(set(hosts)),
        "all-reduce latency_seconds": latency_seconds,
        "all-reduce bits_per_second": bits / seconds,
    }


def _time(data: Any, repeats: int) -> float:
    """Median seconds of one all-reduce."""
    import torch
    import torch.distributed as dist

    times = []
    for _ in range(repeats + 2):
        dist.barrier()
        began = perf_counter()
        dist.all_reduce(data)
        if data.is_cuda:
            torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return sorted(times[2:])[repeats // 2]


def _text(facts: Facts) -> str:
    lines = []
    for section, rows in facts.items():
        lines.append(section)
        for name, value in rows.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else _number(value)
            lines.append(f"  {name:28} {shown}")
    return "\n".join(lines)


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value / 1e6:,.0f} M" if value > 1e6 else f"{value:.6f}"
    return str(value)
