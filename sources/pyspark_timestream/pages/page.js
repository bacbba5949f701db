"use strict";
// Fetches the sections that have changed, and puts them in place; what is open stays open.
// What a page shows is in its address: links and forms change that, and need no reload.
const main = document.querySelector("main"), lost = document.getElementById("lost");
const said = document.getElementById("said");
const sections = new URL("sections", document.currentScript.src).pathname;
let ahead = 0, failures = 0, pause = 0, hurry = () => {}, show = "";
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
      `[data-key="${key}"]:not(details), [data-copy="${key}"], details[data-key="${key}"] > summary`);
    if (back) back.focus({ preventScroll: true });
  };
}

function place(answer) {
  ahead = answer.now_us - Date.now() * 1000;
  pause = answer.pause_ms;
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
  const shown = show && document.querySelector(`#${show} h2`);
  if (shown) {
    shown.focus({ preventScroll: true });
    shown.scrollIntoView({ block: "nearest" });
  }
  show = "";
  Object.keys(seen).forEach((id) => delete seen[id]);
  Object.assign(seen, answer.digests);
  tick();
  const told = [...document.querySelectorAll("[data-say]")].map((each) => each.dataset.say);
  if (said.textContent !== told.join("; ")) said.textContent = told.join("; ");
}

function room() {
  const width = (document.querySelector("[data-room]") || main).clientWidth;
  return width - width % 20;
}

async function untilSeen() {
  while (document.hidden)
    await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

async function follow() {
  for (;;) {
    await untilSeen();  // Nobody looks at a hidden page, so it asks for nothing.
    const stop = new AbortController();
    let isHurried = false;
    const hurried = new Promise((done) => {
      hurry = () => { isHurried = true; stop.abort(); done(); };
    });
    try {
      const asked = new URLSearchParams(location.search);
      asked.set("seen", JSON.stringify(seen));
      const width = room();
      asked.set("width", width);
      const answer = await fetch(sections + "?" + asked, { cache: "no-store", signal: stop.signal });
      if (!answer.ok) throw new Error(answer.statusText);
      const told = await answer.json();
      if (!isHurried) place(told);
      failures = 0;
      lost.hidden = true;
      if (room() !== width) continue;
    } catch (error) {
      if (isHurried) continue;
      failures += 1;
      if (failures > 1) {
        lost.textContent = "Nobody answers: the command or the query that serves this page has " +
          "ended. What is below is what it last said.";
        lost.hidden = false;
      }
    }
    if (!isHurried)
      await Promise.race([hurried, new Promise((done) => setTimeout(done, failures ? 2000 : pause))]);
  }
}

function go(address, section) {
  history.pushState(null, "", address);
  show = section || "";
  hurry();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="?"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.getAttribute("href"), link.dataset.show);
});
for (const form of document.forms) {
  const ask = () => {
    const asked = new URLSearchParams(location.search);
    for (const [name, text] of new FormData(form)) text ? asked.set(name, text) : asked.delete(name);
    asked.delete("from");
    history.replaceState(null, "", "?" + asked);
    hurry();
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  form.addEventListener("input", ask);
}
addEventListener("popstate", () => {
  const asked = new URLSearchParams(location.search);
  for (const field of document.querySelectorAll("input[name]"))
    field.value = asked.get(field.name) || "";
  hurry();
});
document.addEventListener("click", async (event) => {
  const key = event.target.dataset && event.target.dataset.copy;
  if (!key) return;
  const section = event.target.closest("article");
  const text = section.querySelector(`[id="${key}"]`).textContent;
  try { await navigator.clipboard.writeText(text); event.target.textContent = "copied"; }
  catch (error) { event.target.textContent = "select and copy"; }
});
setInterval(() => { if (!document.hidden) tick(); }, 1000);
follow();
