"""gradwire completion: a script by which a shell completes commands, members and topologies.

eval "$(gradwire completion bash)"         in ~/.bashrc
eval "$(gradwire completion zsh)"          in ~/.zshrc, after compinit
gradwire completion fish | source          in ~/.config/fish/config.fish
"""

from __future__ import annotations

import argparse
import json

from gradwire.errors import UsageError

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell that runs the script")
    parser.add_argument("--json", action="store_true", help="print the script in a JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script; returns the exit code. Raises UsageError."""
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError as error:
        raise UsageError(
            "completions need the package argcomplete, which is not installed. Run pip install "
            "argcomplete."
        ) from error
    # Only arguments that are files complete as files, not all others by the shell's default.
    script = shellcode(["gradwire"], use_defaults=False, shell=arguments.shell)
    told = {"shell": arguments.shell, "script": script}
    print(json.dumps(told) if arguments.json else script.strip())
    return 0
