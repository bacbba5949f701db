"use strict";
// Fetches the sections that have changed, and puts them in place; what is open stays open.
const main = document.getElementById("queries"), lost = document.getElementById("lost");
const sections = new URL("sections", document.currentScript.src).pathname;
let ahead = 0, failures = 0;
const seen = {};

function age(us) {
  const s = (Date.now() * 1000 + ahead - us) / 1e6, sign = s < 0 ? "-" : "", a = Math.abs(s);
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, name] of units) if (a >= size) return sign + (a / size).toFixed(1) + " " + name;
  return sign + Math.floor(a) + " s";
}

function tick() {
  for (const each of document.querySelectorAll("time[data-age-us]")) {
    const text = age(Number(each.dataset.ageUs));
    if (each.textContent !== text) each.textContent = text;
  }
}

function keep(section) {
  const open = [], scrolls = [];
  for (const each of section.querySelectorAll("details[data-key]"))
    if (each.open) open.push(each.dataset.key);
  for (const each of section.querySelectorAll("[tabindex][data-key]"))
    scrolls.push([each.dataset.key, each.scrollTop, each.scrollLeft]);
  const on = section.contains(document.activeElement) ? document.activeElement : null;
  const key = on && (on.dataset.key || on.dataset.copy ||
    (on.tagName === "SUMMARY" && on.parentElement.dataset.key));
  return () => {
    for (const each of section.querySelectorAll("details[data-key]"))
      each.open = open.includes(each.dataset.key);
    for (const [name, top, left] of scrolls) {
      const found = section.querySelector(`[tabindex][data-key="${name}"]`);
      if (found) { found.scrollTop = top; found.scrollLeft = left; }
    }
    if (!key) return;
    const back = section.querySelector(
      `[tabindex][data-key="${key}"], [data-copy="${key}"], details[data-key="${key}"] > summary`);
    if (back) back.focus({ preventScroll: true });
  };
}

function place(answer) {
  ahead = answer.now_us - Date.now() * 1000;
  for (const child of [...main.children])
    if (!(child.id in answer.digests)) child.remove();
  for (const [id, html] of Object.entries(answer.sections)) {
    let section = document.getElementById(id);
    if (!section) {
      section = document.createElement("article");
      section.id = id;
      main.append(section);
    }
    const restore = keep(section);
    section.innerHTML = html;
    restore();
  }
  Object.keys(seen).forEach((id) => delete seen[id]);
  Object.assign(seen, answer.digests);
  tick();
}

async function follow() {
  for (;;) {
    try {
      const answer = await fetch(sections + "?seen=" + encodeURIComponent(JSON.stringify(seen)),
        { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      place(await answer.json());
      failures = 0;
      lost.hidden = true;
    } catch (error) {
      failures += 1;
      if (failures > 1) {
        lost.textContent = "Nobody answers: the command or the query that serves this page has " +
          "ended. What is below is what it last said.";
        lost.hidden = false;
      }
    }
    await new Promise((done) => setTimeout(done, failures ? 2000 : 250));
  }
}

document.addEventListener("click", async (event) => {
  const key = event.target.dataset && event.target.dataset.copy;
  if (!key) return;
  const section = event.target.closest("article");
  const text = section.querySelector(`[id="${key}"]`).textContent;
  try { await navigator.clipboard.writeText(text); event.target.textContent = "copied"; }
  catch (error) { event.target.textContent = "select and copy"; }
});
setInterval(tick, 1000);
follow();
