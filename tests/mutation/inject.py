"""Imported by the fork server of ranks: they get the mutant that their parent is."""

from __future__ import annotations

import os
from pathlib import Path

import gradwire.training.attach  # noqa: F401 - so that there is something to change
from mutation.evidence import PACKAGE
from mutation.operators import sites
from mutation.run import PythonMutant

if key := os.environ["GRADWIRE_MUTANT"]:
    number, file = key.split(" ", 1)
    found = sites(Path(PACKAGE, file).read_text(encoding="utf-8"))
    PythonMutant(file, int(number), found[int(number)]).put_in()
