"use strict";
// Filters of the table of strategies. Without this script the table stands there whole.

const seconds = (row, rate) =>
  Number(row.querySelector(`td[data-rate="${rate}"]`).dataset.seconds || 0);

function fits(row, { optimizer, network, limit, model }) {
  const verdict = optimizer && row.querySelector(`[data-optimizer="${optimizer}"]`);
  if (verdict && !verdict.classList.contains("sound")) return false;
  if (model && !row.dataset.models.split("|").includes(model)) return false;
  if (!limit || !network) return true;
  const taken = seconds(row, network); // 0: as the data are, for models that have such
  return taken ? taken <= Number(limit) : Boolean(model);
}

function apply(box) {
  const form = box.querySelector("form");
  const asked = Object.fromEntries(new FormData(form));
  form.elements.limit.disabled = !asked.network;
  const hidden = (cell, name) => asked[name] !== "" && cell.dataset[name] !== asked[name];
  for (const cell of box.querySelectorAll("[data-rate]"))
    cell.hidden = Boolean(asked.network) && cell.dataset.rate !== asked.network;
  for (const cell of box.querySelectorAll("[data-optimizer]"))
    cell.hidden = hidden(cell, "optimizer");
  const rows = [...box.querySelectorAll("tbody tr")];
  for (const row of rows) row.hidden = !fits(row, asked);
  const shown = rows.filter((row) => !row.hidden).length;
  box.querySelector(".shown").textContent = shown
    ? `${shown} of ${rows.length} strategies, the nearest to dense first.`
    : "None that is known does all of that. Allow more time, or ask for less.";
}

for (const box of document.querySelectorAll(".strategies")) {
  const form = box.querySelector("form");
  form.hidden = false;
  form.addEventListener("change", () => apply(box));
  form.addEventListener("reset", () => setTimeout(() => apply(box)));
  form.addEventListener("submit", (event) => event.preventDefault());
  apply(box);
}
