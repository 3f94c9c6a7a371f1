"use strict";
// The timeline: rows of spans on a canvas, which zooms and tells what a span is. Plain values come
// from the page; all that they say is set as text, never as markup.
(() => {
  const holder = document.getElementById("timeline");
  if (!holder) return;
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const canvas = holder.querySelector("canvas"), told = document.getElementById("told");
  const shown = document.getElementById("shown"), steps = document.getElementById("steps");
  const context = canvas.getContext("2d");
  const ROW = 17, GAP = 9, HEAD = 26, NAMES = 128, FIELDS = 5;
  let rows = [], tops = [], end = 1, from = 0, to = 1, at = null, drawing = false;

  let theme = {};
  function dress() {
    const all = getComputedStyle(document.documentElement), of = (name) => all.getPropertyValue(name).trim();
    const colours = data.kinds.map((kind) => of(`--${kind}`) || of("--other"));
    theme = { ink: of("--ink"), soft: of("--soft"), line: of("--line"), colours, inks: colours.map(readable) };
    draw();
  }

  const time = (us) =>
    us >= 1e6 ? `${(us / 1e6).toFixed(2)} s` : us >= 1e3 ? `${(us / 1e3).toFixed(2)} ms` : `${Math.round(us)} µs`;
  const bytes = (n) => {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
      if (n >= size) return `${(n / size).toPrecision(3)} ${unit}`;
    return `${n} B`;
  };

  function choose() {
    const step = data.steps[steps ? steps.selectedIndex : 0], which = shown ? shown.value : "";
    rows = step.rows.filter((row) => which === "" || row.rank < 0 || String(row.rank) === which);
    end = step.end;
    [from, to] = [0, end];
    at = null;
    resize();
  }

  function resize() {
    const width = holder.clientWidth, ratio = devicePixelRatio || 1;
    let height = HEAD;
    tops = rows.map((row, r) => {
      if (r) height += ROW + (rows[r - 1].rank === row.rank ? 2 : GAP);
      return height;
    });
    height += ROW + 8;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
  }

  const left = () => (holder.clientWidth < 560 ? 84 : NAMES);
  const x = (us) => left() + ((us - from) / (to - from)) * (holder.clientWidth - left() - 8);

  function draw() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      paint();
    });
  }

  function paint(whole = false) {
    // Of a tall timeline only what the window shows.
    const width = holder.clientWidth, top = whole ? 0 : Math.max(0, -canvas.getBoundingClientRect().top);
    const bottom = whole ? canvas.height : top + innerHeight;
    context.clearRect(0, top, width, bottom - top);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    axis(width, top, bottom);
    rows.forEach((row, r) => {
      const y = tops[r];
      if (y + ROW < top || y > bottom) return;
      context.fillStyle = theme.soft;
      context.textAlign = "left";
      const name = holder.clientWidth < 560 ? row.name.replace("rank ", "") : row.name;
      context.fillText(name, 8, y + ROW / 2, left() - 12);
      boxes(row.spans, y, width);
    });
    if (at) {
      const [r, i] = at, s = rows[r].spans;
      context.strokeStyle = theme.ink;
      context.lineWidth = 2;
      context.strokeRect(x(s[i]), tops[r], Math.max(2, x(s[i] + s[i + 1]) - x(s[i])), ROW);
    }
  }

  function readable(colour) {
    // Black or white, whichever differs more (WCAG's relative luminance).
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    return luminance > 0.179 ? "#000000" : "#ffffff";
  }

  function axis(width, top, bottom) {
    const rough = (to - from) / (holder.clientWidth < 560 ? 3 : 7);
    let step = 10 ** Math.floor(Math.log10(rough));
    step *= [1, 2, 5, 10].find((k) => k * step >= rough) || 10;
    context.strokeStyle = theme.line;
    context.fillStyle = theme.soft;
    context.textAlign = "center";
    context.lineWidth = 1;
    for (let us = Math.ceil(from / step) * step; us <= to; us += step) {
      const place = x(us);
      context.beginPath();
      context.moveTo(place, Math.max(top, HEAD - 6));
      context.lineTo(place, bottom);
      context.stroke();
      const room = context.measureText(time(us)).width / 2 + 2;
      context.fillText(time(us), Math.min(place, width - room), 11);
    }
  }

  function boxes(s, y, width) {
    let filled = -1; // the last pixel that was painted: what is narrower hides behind it
    for (let i = first(s); i < s.length && s[i] < to; i += FIELDS) {
      const a = Math.max(left(), x(s[i])), b = Math.min(width - 8, x(s[i] + s[i + 1]));
      if (b < left() || (b <= filled && b - a < 1)) continue;
      const wide = Math.max(1, b - a - (b - a > 4 ? 1 : 0));
      context.fillStyle = theme.colours[s[i + 2]];
      context.fillRect(a, y, wide, ROW);
      filled = a + wide;
      if (wide > 44) {
        context.fillStyle = theme.inks[s[i + 2]];
        context.textAlign = "left";
        context.save();
        context.beginPath();
        context.rect(a, y, wide, ROW);
        context.clip();
        context.fillText(caption(s, i), a + 5, y + ROW / 2 + 1);
        context.restore();
      }
    }
  }

  function first(s) {
    // The first span of a row that ends after what is shown begins; spans of a row follow each other.
    let low = 0, high = s.length / FIELDS;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (s[mid * FIELDS] + s[mid * FIELDS + 1] < from) low = mid + 1;
      else high = mid;
    }
    return low * FIELDS;
  }

  function caption(s, i) {
    const kind = data.kinds[s[i + 2]], what = data.labels[s[i + 3]].split(" [")[0];
    return what ? `${kind} ${what}` : kind;
  }

  const WORDS = {
    compute: "data, forward and optimizer: nothing of this step is ready to be sent yet",
    backward: "backward: gradients become ready, and their buckets leave one by one",
    wait: "backward is over; the step waits for the exchange",
    encode: "this rank makes the bucket's message: it selects, quantizes, packs",
    wire: "the message is on its way, or waits for ranks that come later",
    decode: "what arrived is unpacked, summed and averaged",
  };

  function tell() {
    if (!at) return;
    const [r, i] = at, s = rows[r].spans, kind = data.kinds[s[i + 2]], label = data.labels[s[i + 3]];
    const parts = [`${rows[r].name}: ${kind} ${label}`.trim(), time(s[i + 1]), `from ${time(s[i])} to ${time(s[i] + s[i + 1])}`];
    if (s[i + 4]) parts.push(`${bytes(s[i + 4])} sent`);
    told.textContent = `${parts.join(", ")}. ${WORDS[kind] ? `(${WORDS[kind]}.)` : ""}`;
  }

  function find(px, py) {
    const us = from + ((px - left()) / (holder.clientWidth - left() - 8)) * (to - from);
    const slack = (to - from) / holder.clientWidth;
    for (let r = 0; r < rows.length; r++) {
      if (py < tops[r] || py > tops[r] + ROW) continue;
      const s = rows[r].spans;
      for (let i = first(s); i < s.length && s[i] <= us + slack; i += FIELDS)
        if (us >= s[i] - slack && us <= s[i] + s[i + 1] + slack) return [r, i];
    }
    return null;
  }

  function zoom(factor, centre) {
    const middle = centre === undefined ? (from + to) / 2 : centre;
    const wide = Math.min(end, Math.max(end / 5e4, (to - from) * factor));
    const part = (middle - from) / (to - from);
    from = Math.min(Math.max(0, middle - part * wide), end - wide);
    to = from + wide;
    draw();
  }

  function pan(share) {
    const by = Math.min(Math.max(-from, share * (to - from)), end - to);
    [from, to] = [from + by, to + by];
    draw();
  }

  function select(where) {
    at = where;
    tell();
    if (!at) return draw();
    const s = rows[at[0]].spans, middle = s[at[1]] + s[at[1] + 1] / 2;
    if (middle < from || middle > to) pan((middle - (from + to) / 2) / (to - from));
    draw();
  }

  function next(by) {
    if (!rows.length) return;
    if (!at) return select([0, first(rows[0].spans)]);
    const i = at[1] + by * FIELDS;
    if (i >= 0 && i < rows[at[0]].spans.length) select([at[0], i]);
  }

  function turn(by) {
    if (!at) return next(0);
    const s = rows[at[0]].spans, middle = s[at[1]] + s[at[1] + 1] / 2;
    for (let r = at[0] + by; r >= 0 && r < rows.length; r += by) {
      const other = rows[r].spans;
      if (!other.length) continue;
      let best = 0;
      for (let i = 0; i < other.length; i += FIELDS)
        if (Math.abs(other[i] + other[i + 1] / 2 - middle) < Math.abs(other[best] + other[best + 1] / 2 - middle)) best = i;
      return select([r, best]);
    }
  }

  const keys = {
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
    ArrowLeft: (e) => (e.shiftKey ? pan(-0.3) : next(-1)), ArrowRight: (e) => (e.shiftKey ? pan(0.3) : next(1)),
    ArrowUp: () => turn(-1), ArrowDown: () => turn(1), Home: () => ([from, to] = [0, end]) && draw(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key](event);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX) && document.activeElement !== canvas) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return pan((event.deltaX || event.deltaY) / 1000);
    const part = (event.offsetX - left()) / (holder.clientWidth - left() - 8);
    zoom(1.0015 ** event.deltaY, from + part * (to - from));
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from, to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) {
      const found = find(event.offsetX, event.offsetY);
      if (found && (!at || found[0] !== at[0] || found[1] !== at[1])) select(found);
      return;
    }
    const by = ((drag.x - event.clientX) / (holder.clientWidth - left() - 8)) * (drag.to - drag.from);
    drag.moved = drag.moved || Math.abs(drag.x - event.clientX) > 3;
    const kept = Math.min(Math.max(-drag.from, by), end - drag.to);
    [from, to] = [drag.from + kept, drag.to + kept];
    draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) select(find(event.offsetX, event.offsetY));
    drag = null;
  });
  document.getElementById("in").addEventListener("click", () => zoom(0.5));
  document.getElementById("out").addEventListener("click", () => zoom(2));
  document.getElementById("all").addEventListener("click", () => { [from, to] = [0, end]; draw(); });
  for (const control of [shown, steps]) if (control) control.addEventListener("change", choose);
  addEventListener("resize", resize);
  addEventListener("scroll", draw, { passive: true });
  addEventListener("beforeprint", () => paint(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
  const paper = matchMedia("print"); // which is light
  paper.addEventListener("change", () => { dress(); if (paper.matches) paint(true); });
  choose();
  dress();
})();
