"""The page of a large run: its size, how fast it is written and loaded, and its frame rate.

    python benchmarks/recording/page.py [--ranks 64] [--tensors 200] [--steps 200]

It makes up a run folder, writes the page with `gradwire report`, and opens it in Chromium without
a GPU (`make browser` installs it), which zooms in and out for three seconds and counts frames.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from gradwire.run_folder import FORMAT, RankFile

STRATEGY = "topk(0.01)+ef | allgather"
KINDS = ("compute", "backward", "wait", "encode", "wire", "decode")
ZOOM = """
const done = arguments[0], canvas = document.querySelector("canvas"), begin = performance.now();
let frames = 0;
const next = () => {
  if (performance.now() - begin > 3000) return done(frames / 3);
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: frames % 40 < 20 ? "+" : "-" }));
  frames += 1;
  requestAnimationFrame(next);
};
requestAnimationFrame(next);
"""


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name, "run"), Path(name, "report.html")
        for rank in range(arguments.ranks):
            make_up(folder, rank, arguments)
        began = perf_counter()
        command = [sys.executable, "-m", "gradwire", "report", str(folder), "-o", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        written = perf_counter() - began
        print(f"{page.stat().st_size / 1e6:.1f} MB, written in {written:.1f} s")
        loaded, frames = look(page)
        print(f"loaded and drawn in {loaded:.2f} s, {frames:.0f} frames a second while it zooms")
    return 0


def make_up(folder: Path, rank: int, asked: argparse.Namespace) -> None:
    """Writes one rank's file."""
    dice, file = random.Random(rank), RankFile(folder, rank)
    file.add(
        "about", format=FORMAT, rank=rank, world=asked.ranks, start=1, step=0,
        host=f"node{rank // 8}",
        pid=1, unix_seconds=0.0, clock_seconds=0.0, ahead_seconds=0.0, ahead_error_seconds=1e-4,
        facts={"backend": "gloo", "device": "cpu", "command": ["python", "train.py"]},
    )  # fmt: skip
    if rank == 0:
        file.add("plan", step=0, plan={"buckets": [_bucket(i) for i in range(asked.tensors)]})
    labels = ["", *(f"bucket {i} [{STRATEGY}]" for i in range(asked.tensors))]
    for step in range(asked.steps):
        parts = {"compute": 0.05, "backward": 0.06, "wait": 0.09}
        lanes = dict.fromkeys(("encode", "wire", "decode"), 0.1)
        took = 0.2 + 0.01 * dice.random()
        sizes = {"bytes_sent": 1e6, "bytes_across": 1e6, "bytes_given": 2e8}
        file.add(
            "step", step=step, steps=1, at=0.2 * step, seconds=took, most_seconds=took, **parts,
            **lanes, **sizes,
        )  # fmt: skip
        file.add("spans", step=step, kinds=KINDS, labels=labels, spans=_spans(step, asked, dice))
        file.add("log", step=step, at=0.2 * step, numbers={"loss": 5 - 0.01 * step})
    file.close()


def _bucket(i: int) -> dict[str, Any]:
    weight = {"name": f"layers.{i}.attention.weight", "shape": [512, 512], "dtype": "float32"}
    return {"strategy": STRATEGY, "parameters": [weight]}


def _spans(step: int, asked: argparse.Namespace, dice: random.Random) -> list[list[Any]]:
    zero = 200_000 * step
    rows: list[list[Any]] = [
        [-1, 0, 0, zero, 50_000, 0, "world"], [-1, 1, 0, zero + 50_000, 60_000, 0, "world"],
        [-1, 2, 0, zero + 110_000, 90_000, 0, "world"],
    ]  # fmt: skip
    free = [zero + 52_000] * 2
    for bucket in range(asked.tensors):
        lane = bucket % 2
        for kind, micros, sent in (
            (3, 200, 0),
            (4, 900 + dice.randrange(300), 123456),
            (5, 150, 0),
        ):
            rows.append([lane, kind, 1 + bucket, free[lane], micros, sent, "world"])
            free[lane] += micros
    return rows


def look(page: Path) -> tuple[float, float]:
    """Returns seconds until the timeline is drawn, and frames per second."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(flag)
    options.add_argument("--window-size=1280,900")
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        began = perf_counter()
        driver.get(page.as_uri())
        driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => done())"
        )
        return perf_counter() - began, float(driver.execute_async_script(ZOOM))
    finally:
        driver.quit()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
