"""The public names are frozen, and importing a part costs only that part."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gradwire

# More may be added; a name that is here stays.
PUBLIC = [
    "Accordion",
    "Handle",
    "LocalSteps",
    "Plan",
    "Strategy",
    "Trace",
    "Warmup",
    "__version__",
    "attach",
    "available",
    "ddp_kwargs",
    "detach",
    "init_process_group",
    "lockstep",
    "metrics",
    "optim",
    "recommend",
    "record",
    "register",
    "sound",
]


def test_public_names_are_frozen() -> None:
    assert sorted(gradwire.__all__) == PUBLIC
    assert dir(gradwire) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(gradwire, name)
    assert name == "__version__" or value.__name__.rpartition(".")[2] == name
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gradwire' has no attribute 'attatch'"):
        gradwire.attatch  # noqa: B018


WITHOUT_TORCH = [
    "import gradwire",
    "import gradwire.errors",
    "import gradwire.buckets",
    "import gradwire.moves",
    "import gradwire.trace",
    "import gradwire.run_folder, gradwire.report.summary, gradwire.report.perfetto",
    "import gradwire.strategy",
    "import gradwire.plan",
    "from gradwire import Plan, Strategy, Trace, metrics",
    "from gradwire.buckets import Parameter; Parameter('w', (2, 3)).bytes",
    "import gradwire.cli.main as cli; cli._parser('')",
]


def loads_torch(code: str, arguments: tuple[str, ...] = ()) -> str:
    """Says whether a fresh interpreter has loaded torch, and numpy, after running the code."""
    told = "print('torch' in sys.modules, 'numpy' in sys.modules)"
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\n{told}"
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("code", WITHOUT_TORCH)
def test_the_vocabulary_loads_without_torch(code: str) -> None:
    assert loads_torch(code) == "False False"


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_the_command_line_starts_without_torch(argument: str) -> None:
    code = "import runpy; runpy.run_module('gradwire', run_name='__main__')"
    assert loads_torch(code, (argument,)) == "False False"


def test_the_check_can_see_torch() -> None:
    assert loads_torch("import gradwire.compressors").startswith("True")
