"""Whole lines from pipes."""

import io
import json
import os
import sys

import pytest

from gradwire.bench.machine import say
from gradwire.cli import main as cli
from gradwire.lab.job import LinePipe, print_prefixed


def _lines_of(*writes: bytes) -> list[str]:
    got: list[str] = []
    pipe = LinePipe(0, "stdout", lambda rank, stream, line: got.append(line))
    for data in writes:
        os.write(pipe.writer, data)
        pipe.pump()
    pipe.close_writer()
    while pipe.pump():
        pass
    pipe.close()
    return got


def test_lines_come_whole_however_they_were_written():
    assert _lines_of(b"one\ntw", b"o\n", b"\nfour") == ["one", "two", "", "four"]


def test_a_letter_of_several_bytes_may_be_cut():
    assert _lines_of(b"\xc3", b"\xa9\n") == ["é"]


def test_wrong_bytes_do_not_stop_the_output():
    assert _lines_of(b"a\xffb\n") == ["a\ufffdb"]


def test_carriage_return_before_the_newline_goes():
    assert _lines_of(b"one\r\n") == ["one"]


def test_endless_line_is_handed_on_in_pieces():
    lines = _lines_of(*[b"x" * 60_000] * 40)
    assert len(lines) > 1
    assert sum(map(len, lines)) == 40 * 60_000


def test_prefix_and_stream(capsys):
    print_prefixed(3, "stdout", "out")
    print_prefixed(12, "stderr", "err")
    assert capsys.readouterr() == ("[3] out\n", "[12] err\n")


class Gone(io.StringIO):
    """A stream whose reader has closed it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [Gone(), None])
def test_lines_that_nobody_reads_stop_no_work(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor do they go to standard output, where --json has its document."""
    monkeypatch.setattr(sys, "stderr", stream)
    print_prefixed(1, "stderr", "lost")
    say("lost")
    command = [sys.executable, "-c", "import sys; print('lost'); print('lost', file=sys.stderr)"]
    assert cli.main(["lab", "run", "--hosts", "1", "--loopback", "--json", "--", *command]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0
