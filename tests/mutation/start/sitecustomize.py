"""Python runs this first where PYTHONPATH has this folder: what a mutant starts is that mutant.

GRADWIRE_MUTANT is its file and number. The fork server of ranks, command lines and the fuzzer
import that module with its change.
"""

import os
import sys

if _key := os.environ.get("GRADWIRE_MUTANT"):
    from mutation.imports import Finder

    _number, _file = _key.split(" ", 1)
    sys.meta_path.insert(0, Finder(_file, int(_number)))  # type: ignore[arg-type]
