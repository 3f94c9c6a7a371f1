"""Makes wheels without a build, and installs them without a network."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path


def wheel_of(package: Path, folder: Path) -> Path:
    """Writes the wheel that a build of the package would make: its files and its metadata."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    groups = project["entry-points"].items()
    points = "\n".join(
        f"[{group}]\n" + "\n".join(f"{key} = {place}" for key, place in own.items())
        for group, own in groups
    )
    about = f"{name}-{version}.dist-info"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted((package / name).glob("*.py")):
            archive.write(file, f"{name}/{file.name}")
        archive.writestr(f"{about}/entry_points.txt", points)
        archive.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n",
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return wheel


def installed(package: Path, folder: Path) -> Path:
    """Installs a wheel of the package with pip, and returns the folder that pip put it in."""
    wheel, place = wheel_of(package, folder), folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(place), str(wheel)], check=True, timeout=120)
    return place
