"""The page of a report in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import PLAN, about, spans, step, write
from selenium.webdriver import Keys
from test_cli_plan import PLAN as PLANNED
from test_report import run_of
from test_report_page import EVIL, shown
from test_report_pages import SIMULATED, demo, written

from gradwire.demo.page import page as demo_page
from gradwire.lab import Cluster
from gradwire.report.run_page import Shown, run_page

LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs, of which one has a plan, names that are markup, and a problem."""
    folder = tmp_path_factory.mktemp("runs")
    dense, own = run_of(folder / "dense", 0.06), run_of(folder / "own", slow=3.0)
    plan = {**PLAN, "buckets": [{**PLAN["buckets"][0], "strategy": EVIL}]}
    write(
        own, 0, ("plan", {"step": 0, "plan": plan}), ("spans", spans(40) | {"labels": [EVIL]}),
        ("event", {"step": 3, "at": 0.1, "what": EVIL}),
    )  # fmt: skip
    path = folder / "report.html"
    path.write_text(run_page([Shown(shown(dense)), Shown(shown(own), story="because")]).html())
    return path


def visit(browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
    browser.get_log("browser")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(path.as_uri())


CONTRAST = """
const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const numbers = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
const parts = [0.2126, 0.7152, 0.0722];
const light = (rgb) => parts.reduce((sum, part, i) => sum + part * linear(rgb[i] / 255), 0);
const below = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const found = numbers(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), low = [];
let seen = 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  const isHidden = element.closest("script, style, title") || !element.getClientRects().length;
  if (!node.textContent.trim() || isHidden) continue;
  const style = getComputedStyle(element), svg = element instanceof SVGElement;
  const one = light(numbers(svg ? style.fill : style.color)), other = light(below(element));
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  seen += 1;
  if (ratio < 4.5) low.push([node.textContent.trim().slice(0, 40), ratio]);
}
return [seen, low];
"""
OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll("figure svg")) {
  const texts = [...svg.querySelectorAll("text")].map((e) => [e, e.getBoundingClientRect()]);
  texts.forEach(([a, one], i) => texts.slice(i + 1).forEach(([b, other]) => {
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (wide > 1 && high > 3) found.push([a.textContent, b.textContent]);
  }));
}
return found;
"""


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_it_is_readable(browser: Any, report: Path, width: int, scheme: str) -> None:
    """The console is empty, nothing is wider than the window, contrast is AA, text is text."""
    visit(browser, report, width, scheme)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    seen, low = browser.execute_script(CONTRAST)
    assert seen > 100
    assert low == []
    assert EVIL in browser.execute_script("return document.body.textContent")


SCROLLED = """
const all = [...document.querySelectorAll(".scroll")];
return all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent.slice(0, 80));
"""
CUT = """
return [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const room = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map((e) => [e, e.getBoundingClientRect()]);
  const cut = texts.filter(([, own]) => own.left < room.left - 1 || own.right > room.right + 1);
  return cut.map(([e]) => e.textContent);
});
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_long_names_and_long_numbers_fit(browser: Any, tmp_path: Path, width: int) -> None:
    runs = []
    for name, scale in (("a" * 100, 1.23e-5), ("b" * 100, 123456.0)):
        runs.append(run_of(tmp_path / name))
        logs = [{"step": n, "at": n, "numbers": {"loss": scale * (1 + n / 40)}} for n in range(40)]
        write(runs[-1], 0, *(("log", log) for log in logs))
    for i, pages in enumerate((runs[:1], runs)):
        path = tmp_path / f"{i}.html"
        path.write_text(run_page([Shown(shown(run)) for run in pages]).html())
        visit(browser, path, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(OVERLAPS) == []
        assert browser.execute_script(CUT) == []


@pytest.mark.parametrize("name", ["plan", "table", "simulated", "demo"])
@pytest.mark.parametrize(("width", "scheme"), [LOOKS[0], LOOKS[3]])
def test_other_pages_are_readable(
    browser: Any, tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    path = tmp_path / "page.html"
    if name == "demo":
        path.write_text(demo_page(demo(0.1), Cluster(4, "1gbit"), "gradwire demo").html())
    else:
        table = [*PLANNED, "--table", "--workers", "4"]
        network = [*SIMULATED, "--scheme", "ecmp_k(16)", "--scheme", "coloured"]
        written(tmp_path, *{"plan": PLANNED, "table": table, "simulated": network}[name])
    visit(browser, path, width, scheme)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    seen, low = browser.execute_script(CONTRAST)
    assert seen >= 20
    assert low == []
    assert browser.execute_script(OVERLAPS) == []
    if (name, width) == ("plan", LOOKS[0][0]):
        assert browser.execute_script(SCROLLED) == []


def focused(browser: Any) -> str:
    """The focused element's id, or its tag and text and its position in the page."""
    found: str = browser.execute_script(
        "const e = document.activeElement, all = [...document.querySelectorAll('*')];"
        "return e.id || `${e.tagName} ${e.textContent} #${all.indexOf(e)}`"
    )
    return found


def test_all_controls_are_reached_by_keyboard(browser: Any, report: Path) -> None:
    visit(browser, report)
    reached = []
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if (name := focused(browser)) in reached:
            break
        reached.append(name)
    # Whatever scrolls, as a table wider than the window does, is reached, too.
    names = [name.partition(" #")[0] for name in reached if not name.startswith("DIV")]
    assert names[:6] == ["steps", "shown", "in", "out", "all", "CANVAS "]
    assert [name for name in names if name.startswith("SUMMARY")] == [
        "SUMMARY Its 2 ranks", "SUMMARY How to repeat it", "SUMMARY Why this plan",
        "SUMMARY Its 2 ranks", "SUMMARY How to repeat it",
    ]  # fmt: skip


def told(browser: Any) -> str:
    found: str = browser.find_element("id", "told").text
    return found


def test_a_span_says_what_it_is(browser: Any, report: Path) -> None:
    """It says so by keyboard and by pointer; and nothing breaks, whatever part is shown."""
    visit(browser, report)
    canvas = browser.find_element("css selector", "canvas")
    assert "Point at a span" in told(browser)
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert told(browser).startswith("rank 0, lane 0: wire bucket 0, 500 µs, from 0 µs to 500 µs")
    assert "40 B sent" in told(browser)
    canvas.send_keys(Keys.ARROW_DOWN)
    assert told(browser).startswith("rank 1, lane 0: wire")
    canvas.send_keys("+++", Keys.SHIFT + Keys.ARROW_RIGHT, Keys.NULL, "-", Keys.HOME)
    for name in ("in", "in", "out", "all"):
        browser.find_element("id", name).click()
    for option in browser.find_elements("css selector", "option"):
        option.click()
    canvas.click()
    assert told(browser).startswith("rank 1, lane 0: wire"), "the last choice is rank 1"
    assert [entry["message"] for entry in browser.get_log("browser")] == []


PIXELS = """
const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
const data = context.getImageData(0, 0, canvas.width, canvas.height).data, found = new Set();
for (let i = 0; i < data.length; i += 4) if (data[i + 3]) found.add(data.slice(i, i + 3).join());
return [canvas.height, found.size, [...found]];
"""


@pytest.mark.parametrize(("scheme", "wire"), [("light", "42,127,98"), ("dark", "69,176,140")])
def test_the_timeline_is_drawn(browser: Any, report: Path, scheme: str, wire: str) -> None:
    visit(browser, report, scheme=scheme)
    browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => done())")
    height, _, colours = browser.execute_script(PIXELS)
    assert height > 50
    assert wire in colours


WRITTEN = """
const [done] = arguments, own = document.querySelector("canvas").getContext("2d"), found = [];
own.fillText = (text, x) => {
  const wide = own.measureText(text).width;
  found.push([text, own.textAlign === "center" ? x + wide / 2 : x + wide]);
};
document.getElementById("all").click();
const { width } = document.querySelector("canvas").getBoundingClientRect();
requestAnimationFrame(() => requestAnimationFrame(() => done([found, width])));
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_last_tick_of_a_timeline_is_whole(browser: Any, tmp_path: Path, width: int) -> None:
    """It stands at the end of what is shown, which is the window's."""
    whole = {**spans(0), "spans": [[0, 0, 0, 0, 10_000, 40, "world"]]}
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)), ("spans", whole))
    page = tmp_path / "page.html"
    page.write_text(run_page([Shown(shown(tmp_path))]).html())
    visit(browser, page, width)
    found, wide = browser.execute_async_script(WRITTEN)
    assert [text for text, end in found if end > wide] == []
    assert "10.00 ms" in [text for text, _ in found]


PRINTED = """
const visible = (e) => e.checkVisibility({ contentVisibilityAuto: true });
const folds = [...document.querySelectorAll("details > *:not(summary)")];
const wide = [...document.querySelectorAll("th, td, pre")].filter(
  (e) => visible(e) && e.getBoundingClientRect().right > innerWidth);
return [folds.length, folds.filter((e) => !e.getClientRects().length || !visible(e)).length,
  wide.map((e) => e.textContent), getComputedStyle(document.body).color,
  getComputedStyle(document.body).backgroundColor];
"""


def test_it_prints(browser: Any, report: Path) -> None:
    """On paper it is light, folds are open, and no column is cut off."""
    visit(browser, report, width=718, scheme="dark")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}], "media": "print"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        folds, hidden, wide, ink, paper = browser.execute_script(PRINTED)
        assert (folds, hidden, wide) == (5, 0, [])
        assert (ink, paper) == ("rgb(27, 31, 36)", "rgb(255, 255, 255)")
        wait = (
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )
        browser.execute_async_script(wait)
        assert "42,127,98" in browser.execute_script(PIXELS)[2]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_many_ranks_fit(browser: Any, tmp_path: Path) -> None:
    """The page of 64 ranks stays small, and draws the part that is scrolled to."""
    rows = [[lane, 0, 0, 100 * i, 90, 40, "world"] for lane in (0, 1) for i in range(300)]
    for rank in range(64):
        own = spans(0) | {"spans": rows}
        write(
            tmp_path,
            rank,
            ("about", about(rank=rank, world=64)),
            ("step", step(0)),
            ("spans", own),
        )
    path = tmp_path / "report.html"
    path.write_text(run_page([Shown(shown(tmp_path))]).html())
    assert path.stat().st_size < 5e6
    visit(browser, path)
    browser.execute_script("scrollTo(0, document.querySelector('canvas').offsetTop + 1800)")
    wait = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    browser.execute_async_script(wait)
    height, colours, _ = browser.execute_script(PIXELS)
    assert height > 64 * 2 * 17
    assert colours > 1
