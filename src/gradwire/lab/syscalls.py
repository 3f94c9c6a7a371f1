"""The few Linux calls the lab needs and Python 3.11 does not have."""

import ctypes
import os
import signal
import tempfile
from pathlib import Path

NEW_MOUNTS = 0x00020000
NEW_HOST_NAME = 0x04000000
NEW_USER = 0x10000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

_MOUNT_BIND = 0x1000
_UNMOUNT_DETACH = 2
_MOUNT_RECURSIVE = 0x4000
_MOUNT_PRIVATE = 0x40000
_MOUNT_NO_SUID_DEV_EXEC = 0x2 | 0x4 | 0x8
_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def unshare(kinds: int) -> None:
    """Put the calling process (for `NEW_PROCESSES`: its children) into new namespaces."""
    _call("unshare", kinds)


def enter(namespace_fd: int, kind: int) -> None:
    """Move the calling thread into the namespace that an open `/proc/…/ns/…` file stands for."""
    _call("setns", namespace_fd, kind)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that made it ends."""
    _call("prctl", _SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _call("prctl", _SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep_mounts_private() -> None:
    """Stop mounts of this mount namespace from spreading to others."""
    _call("mount", None, b"/", None, _MOUNT_RECURSIVE | _MOUNT_PRIVATE, None)


def mount_proc() -> None:
    """Show the processes of the current process namespace under `/proc`."""
    _call("mount", b"proc", b"/proc", b"proc", _MOUNT_NO_SUID_DEV_EXEC, None)


def cover_file(path: Path, text: bytes) -> None:
    """Show `text` in place of a file, in this mount namespace only.

    The text is in a memory file system that is mounted for a moment over the directory for
    temporary files, where only we see it, so that nothing is written to any real one.
    """
    stage = os.fsencode(tempfile.gettempdir())
    _call("mount", b"tmpfs", stage, b"tmpfs", _MOUNT_NO_SUID_DEV_EXEC, None)
    try:
        source = Path(os.fsdecode(stage), "text")
        source.write_bytes(text)
        source.chmod(0o644)
        _call("mount", os.fsencode(source), os.fsencode(path), None, _MOUNT_BIND, None)
    finally:
        _call("umount2", stage, _UNMOUNT_DETACH)
