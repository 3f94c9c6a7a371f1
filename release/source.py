"""Makes the source distribution in dist/, from which pip builds where there is no wheel."""

from __future__ import annotations

import subprocess
import sys

from wheels import DIST, PYTHONS, ROOT, tools_of

if __name__ == "__main__":
    python = str(tools_of(PYTHONS[0]) / "python")
    make = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(DIST)!r}))"
    sys.exit(subprocess.run([python, "-c", make], cwd=ROOT, check=False).returncode)
