"""Completion in shells: the scripts run in the shells that are installed; and members are
completed without loading torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire import registry
from gradwire.cli import completers
from gradwire.cli import main as cli

MODULES = {"torch", "rich"}


@pytest.fixture(scope="module")
def on_path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `gradwire` starts this version."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "gradwire"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom gradwire.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}


# -- members, without torch ----------------------------------------------------------------------


@pytest.mark.parametrize("family", ["compressors", "feedback", "collectives"])
def test_members_are_those_of_the_registry(family: str) -> None:
    known = registry.families()[family]
    found = {name.text: name for name in completers.members(family)}
    assert set(found) == set(known)
    for text, name in found.items():
        assert name.is_whole == bool(getattr(known[text], "compresses", False)), text
        if completers._takes(known[text]):
            assert name.has_parameters, text


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ("", ["topk", "dgc", "powersgd"], ["allgather", "ef"]),
        ("q", ["qsgd(", "qsgd | ", "qsgd+"], ["topk"]),
        ("none", ["none | ", "none+"], ["none("]),
        ("powers", ["powersgd(", "powersgd"], ["powersgd | "]),
        ("topk(0.01)+", ["topk(0.01)+ef", "topk(0.01)+momentum"], ["topk(0.01)+topk"]),
        ("topk(1e+", [], ["topk(1e+ef"]),
        ("dgc(0.1) |", ["dgc(0.1) | allgather"], ["dgc(0.1) | ef"]),
        ("a + b | zen", ["a + b | zen"], []),
        ("nothing", [], ["topk"]),
    ],
)
def test_strategies(typed: str, offered: list[str], not_offered: list[str]) -> None:
    found = completers.strategies(typed)
    assert set(offered) <= set(found)
    assert not set(not_offered) & set(found)
    assert all(text.startswith(typed) for text in found if typed)


def test_a_member_of_another_package_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member is known by its entry point, whether or not it can be loaded."""
    made = tmp_path / "theirs-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text("[gradwire.compressors]\ntheirs = not_there:Theirs\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert completers.strategies("thei") == ["theirs(", "theirs | ", "theirs+"]


# -- shells --------------------------------------------------------------------------------------

BASH = """
eval "$(gradwire completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete gradwire
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { : }
eval "$(gradwire completion zsh)"
_describe() { print -rl -- ${completions%%:*} }
BUFFER=$1 CURSOR=${#1} words=(gradwire)
_python_argcomplete
"""
FISH = """
gradwire completion fish | source
complete -C $argv[1] | string split -f 1 \\t
"""
SHELLS = {"bash": (BASH, ["-c"]), "zsh": (ZSH, ["-fc"]), "fish": (FISH, ["--no-config", "-c"])}

CASES = {
    "gradwire net": ["network"],
    "gradwire network plan --sch": ["--scheme"],
    "gradwire network plan --placement ": ["in-order", "shuffled"],
    "gradwire network plan --scheme c": ["coloured"],
    "gradwire network plan --topology f": ["fat_tree(pods=", "fat_tree(cores="],
    "gradwire network plan --traffic halv": ["halving_doubling"],
    'gradwire bench compressors "topk(0.01)+e': ["topk(0.01)+ef", "topk(0.01)+ef21"],
    'gradwire demo --strategy "topk(0.01)+ef | allg': ["topk(0.01)+ef | allgather"],
    "gradwire available topk": ["topk"],
    "gradwire available --optimizer mu": ["muon"],
    "gradwire explain a_pl": ["a_plan.json"],
    "gradwire lab run --hosts 2 -- a_pl": ["a_plan.json"],
    "gradwire network plan --seed ": [],
}


def completed(shell: str, line: str, folder: Path, environment: dict[str, str]) -> list[str]:
    program, script = shutil.which(shell), SHELLS[shell]
    assert program is not None
    after = [line] if shell == "fish" else [shell, line]
    done = subprocess.run(
        [program, *script[1], script[0], *after], cwd=folder, env=environment, text=True,
        capture_output=True, check=False, timeout=240,
    )  # fmt: skip
    return [word.strip().replace("\\", "") for word in done.stdout.splitlines() if word.strip()]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", CASES)
def test_a_shell_completes(shell: str, line: str, tmp_path: Path, on_path: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "a_plan.json").write_text("{}")
    found = completed(shell, line, tmp_path, on_path)
    assert set(CASES[line]) <= set(found)
    last = line.rpartition('"' if '"' in line else " ")[2]
    assert CASES[line] or not found
    assert all(word.startswith(last) for word in found)


def test_a_run_is_a_folder(tmp_path: Path, on_path: dict[str, str]) -> None:
    (tmp_path / "a_plan.json").write_text("{}")
    (tmp_path / "a_run").mkdir()
    assert completed("bash", "gradwire top a_", tmp_path, on_path) == ["a_run/"]


@pytest.mark.parametrize("line", ['gradwire demo --strategy "topk+', "gradwire available t"])
def test_a_tab_does_not_wait_for_torch(line: str, tmp_path: Path) -> None:
    code = (
        "import sys, gradwire.cli.main as cli, os\n"
        f"os._exit = lambda code: sys.exit(bool({MODULES} & set(sys.modules)))\n"
        "cli.main()\n"
        "sys.exit(2)"
    )
    out = tmp_path / "out"
    asked = {
        "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, check=False)
    assert done.returncode == 0
    assert "t" in out.read_text()


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "gradwire" in capsys.readouterr().out


def test_without_argcomplete_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete.shell_integration", None)
    assert cli.main(["completion", "bash"]) == 2
    assert "pip install argcomplete" in capsys.readouterr().err


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["completion", "powershell"])
    assert "invalid choice: 'powershell'" in capsys.readouterr().err
