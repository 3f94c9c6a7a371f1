"""Text in every installation of CPython 3.11: its language reference and its larger modules.

The list of names is fixed, so that other installed packages change nothing. A patch release may
change a line; records carry the text's digest.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MODULES = """
pydoc_data/topics argparse ast asyncio/base_events asyncio/streams asyncio/tasks calendar
codecs collections/__init__ concurrent/futures/process configparser contextlib csv dataclasses
datetime difflib dis doctest email/message enum fractions ftplib functools gettext heapq
http/client http/cookiejar http/server imaplib inspect ipaddress locale logging/__init__
logging/handlers mailbox multiprocessing/managers optparse os pdb pickle pickletools pkgutil
plistlib pydoc random shutil smtplib socket ssl statistics subprocess tarfile tempfile textwrap
threading trace traceback typing unittest/mock urllib/parse urllib/request uuid weakref
xml/dom/minidom
"""
BLOCK, HELD_OUT_EVERY = 4096, 20
SYMBOLS = 97
"""The printable characters of ASCII, the newline, and one for all others."""


@dataclass(frozen=True)
class Text:
    """Symbols as numbers, 1-D int64; every twentieth block is held out."""

    train: Tensor
    held_out: Tensor
    digest: str


@cache
def text() -> Text:
    """Returns the text, read once in a process."""
    data = b"".join(map(source, MODULES.split()))
    numbers = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    symbols = torch.where((numbers >= 32) & (numbers < 127), numbers - 32, 96)
    symbols[numbers == 10] = 95
    blocks = symbols[: len(symbols) // BLOCK * BLOCK].view(-1, BLOCK)
    held_out = torch.arange(len(blocks)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    found = blocks[~held_out].flatten(), blocks[held_out].flatten()
    return Text(*found, hashlib.sha256(data).hexdigest()[:16])


def source(module: str) -> bytes:
    """Returns the source of a module of the standard library."""
    path = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    try:
        return path.read_bytes()
    except OSError as error:
        raise SystemExit(
            f"the text of these tasks is in modules of CPython 3.11; {error}. Run the suite with "
            "Python 3.11, or take another task: glyphs, speech, digits."
        ) from error


def windows(symbols: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Returns windows of the text, (count, length), from random positions."""
    begins = torch.randint(len(symbols) - length, (count,), generator=generator)
    return symbols[begins[:, None] + torch.arange(length)]
