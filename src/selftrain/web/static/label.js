// The labeling page. The server has the truth; the page shows it and sends answers, one request after the other.

import { get, post } from "./api.js";
import { curve } from "./curve.js";
import { Grid } from "./grid.js";
import { keyOf, positionOf } from "./keys.js";

const $ = (id) => document.getElementById(id);
const grid = new Grid($("items"));
const PAGE = 24;
let state = null;
let version = 0;
let view = "grid";
let queue = Promise.resolve();

function say(text) {
  $("said").textContent = text;
}

function problem(text) {
  $("problem").textContent = text || "";
  $("problem").hidden = !text;
}

// Requests run one after the other, so that answers reach the server in the order in which they were given.
function inTurn(work) {
  queue = queue.then(work).then(
    (value) => value,
    (error) => problem(error instanceof TypeError ? "The server cannot be reached. Start it again with the same command; your labels are kept." : error.message),
  );
  return queue;
}

function percent(share) {
  return `${Math.round(100 * share)}%`;
}

function showState(next) {
  state = next;
  version = next.version;
  problem(next.file_error || next.error);
  const others = [next.none ? `${next.none} of none` : "", next.skipped ? `${next.skipped} skipped` : ""].filter(Boolean);
  $("counts").textContent = `${next.labeled} of ${next.photos.toLocaleString("en")} labeled${others.length ? `, ${others.join(", ")}` : ""}`;
  const last = [...next.rounds].reverse().find((round) => round.estimate);
  $("estimate").textContent = last
    ? `Right on about ${percent(last.estimate.accuracy)} of the photos (${percent(last.estimate.low)} to ${percent(last.estimate.high)})`
    : "No estimate of the accuracy yet";
  $("status").textContent = next.status;
  $("progress").hidden = next.progress === null;
  if (next.progress !== null) $("progress").value = next.progress;
  $("undo").disabled = !next.can_undo;
  showClasses(next.classes);
  showMore(next, last);
}

function showClasses(classes) {
  const box = $("classes");
  const names = classes.map((one) => one.name).join("\n");
  if (box.dataset.names !== names) {
    box.dataset.names = names;
    box.replaceChildren(...classes.map((one, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.name = one.name;
      const name = document.createElement("span");
      name.textContent = one.name;
      const count = document.createElement("span");
      count.className = "count";
      button.append(name, count);
      const key = keyOf(i);
      if (key) {
        const shown = document.createElement("kbd");
        shown.textContent = key;
        button.prepend(shown);
        button.setAttribute("aria-keyshortcuts", key);
      }
      button.addEventListener("click", () => label(one.name));
      return button;
    }));
    $("class-names").replaceChildren(...classes.map((one) => new Option(one.name)));
  }
  classes.forEach((one, i) => {
    box.children[i].querySelector(".count").textContent = one.labels;
  });
  const select = $("check-class");
  const guessed = classes.filter((one) => one.guesses > 0).sort((a, b) => b.guesses - a.guesses);
  const wanted = guessed.map((one) => one.name).join("\n");
  if (select.dataset.names !== wanted) {
    select.dataset.names = wanted;
    const before = select.value;
    select.replaceChildren(...guessed.map((one) => new Option(`${one.name} (${one.guesses})`, one.name)));
    if (guessed.some((one) => one.name === before)) select.value = before;
  }
}

function showMore(next, last) {
  $("file").textContent = next.file;
  $("command").textContent = next.final.command;
  const words = { running: "running", finished: `finished: ${next.final.out}`, failed: "failed", "not started": "" };
  $("final-state").textContent = words[next.final.state];
  $("train").disabled = next.final.state === "running" || next.classes.filter((one) => one.labels).length < 2;
  $("final-lines").hidden = !next.final.lines.length;
  $("final-lines").textContent = next.final.lines.join("\n");
  $("weakest").textContent = last && last.weakest.length ? `Weakest classes: ${last.weakest.join(", ")}` : "";
  if ($("more").open) $("curve").replaceChildren(curve(next.rounds));
}

function pageSize() {
  return view === "one" ? 1 : PAGE;
}

// Answered photos stay until the page is full of them, so that nothing moves while a hand is on the keys.
async function fill({ fresh = false } = {}) {
  if (view === "check") {
    const name = $("check-class").value;
    const found = name ? await get("api/class", { name, kind: "guesses", n: PAGE }) : { items: [], total: 0 };
    grid.marked.clear();
    grid.show(found.items);
    empty(found.items.length ? "" : "No guesses yet: they appear after the first round of training.");
    $("confirm").disabled = !found.items.length;
    return;
  }
  const open = fresh ? [] : grid.items.filter((item) => item.answer === null);
  if (!fresh && open.length && view !== "one") return;
  const found = await get("api/next", { n: pageSize(), without: open.map((item) => item.id).join(",") });
  grid.current = 0;
  grid.show([...open, ...found.items].slice(0, pageSize()));
  const ready = state && state.ready;
  empty(grid.items.length ? "" : ready ? "All photos have an answer." : "Looking at the photos. The first suggestions appear here.");
}

function empty(text) {
  $("empty").textContent = text;
  $("empty").hidden = !text;
}

function nextOpen() {
  const open = (item) => item.answer === null;
  const after = grid.items.findIndex((item, i) => i > grid.current && open(item));
  const any = after >= 0 ? after : grid.items.findIndex(open);
  if (any >= 0) grid.move(any);
}

function send(items, kind, name = null) {
  if (!items.length) return;
  const before = items.map((item) => [item, item.label, item.answer]);
  for (const item of items) {
    item.label = kind === "label" ? name : null;
    item.answer = kind;
  }
  grid.chosen.clear();
  grid.paint();
  nextOpen();
  const count = items.length === 1 ? items[0].name : `${items.length} photos`;
  inTurn(async () => {
    try {
      const answers = items.map((item) => ({ id: item.id, label: name }));
      const found = await post("api/answers", { kind, answers });
      showState(found.state);
      say(`${count}: ${name ?? { none: "none of these", skip: "skipped" }[kind]}. ${found.state.labeled} labeled.`);
      await fill();
    } catch (error) {
      for (const [item, label, answer] of before) Object.assign(item, { label, answer });
      grid.paint();
      throw error;
    }
  });
}

function label(name) {
  send(grid.targets, "label", name);
  $("items").focus({ preventScroll: true });
}

function undo() {
  inTurn(async () => {
    const found = await post("api/undo", {});
    showState(found.state);
    if (!found.items.length) return;
    const back = new Map(found.items.map((item) => [item.id, item]));
    const shown = new Set(grid.items.map((item) => item.id));
    const missing = found.items.filter((item) => !shown.has(item.id));
    const items = [...missing, ...grid.items.map((item) => Object.assign(item, pick(back.get(item.id))))];
    grid.show(items.slice(0, Math.max(pageSize(), missing.length)));
    grid.move(grid.items.findIndex((item) => back.has(item.id)));
    empty("");
    say(`Taken back: ${found.items.length === 1 ? found.items[0].name : `${found.items.length} photos`}`);
  });
}

function pick(item) {
  return item ? { label: item.label, answer: item.answer } : {};
}

function setView(name) {
  view = name;
  for (const one of ["grid", "one", "check"]) $(`view-${one}`).setAttribute("aria-pressed", String(one === name));
  $("items").dataset.mode = name;
  $("check-bar").hidden = name !== "check";
  grid.chosen.clear();
  inTurn(() => fill({ fresh: true }));
  $("items").focus({ preventScroll: true });
}

function confirmAll() {
  const name = $("check-class").value;
  const rest = grid.items.filter((item) => !grid.marked.has(item.id) && item.answer === null);
  if (!name || !rest.length) return;
  send(rest, "label", name);
  inTurn(async () => {
    await refresh();
    await fill({ fresh: true });
  });
}

function zoom(item) {
  if (!item) return;
  $("zoom-image").src = `image/${item.id}`;
  $("zoom-image").alt = item.name;
  $("zoom-name").textContent = item.name;
  $("zoom").showModal();
}

async function refresh() {
  const found = await get("api/state", { since: version });
  const changed = new Map(found.changed.map((item) => [item.id, item]));
  const wasReady = state && state.ready;
  showState(found);
  for (const item of grid.items) Object.assign(item, pick(changed.get(item.id)));
  if (changed.size) grid.paint();
  if (found.ready && !wasReady) await fill({ fresh: true });
  else if (!grid.items.length || grid.items.every((item) => item.answer !== null)) await fill();
}

const COMMANDS = {
  ArrowLeft: () => grid.move(grid.current - 1),
  ArrowRight: () => grid.move(grid.current + 1),
  ArrowUp: () => grid.move(grid.current - grid.columns()),
  ArrowDown: () => grid.move(grid.current + grid.columns()),
  Home: () => grid.move(0),
  End: () => grid.move(grid.items.length - 1),
  " ": () => grid.toggle(),
  Enter: () => view === "check" && confirmAll(),
  "/": () => $("name-input").focus(),
  "?": () => $("help").showModal(),
  c: () => setView("check"),
  d: () => chooseSame(),
  g: () => setView("grid"),
  o: () => setView("one"),
  s: () => send(grid.targets, "skip"),
  u: undo,
  x: () => send(grid.targets, "none"),
  z: () => zoom(grid.item),
};

// Photos that are nearly the same get the same answer, if the user agrees.
function chooseSame() {
  const item = grid.item;
  if (!item || !item.same.length) return;
  const shown = new Set(grid.items.map((one) => one.id));
  const more = item.same.filter((id) => !shown.has(id)).map((id) => ({
    id, name: `photo ${id}`, why: `nearly the same as ${item.name}`, same: [], guess: null, confidence: null, label: null, answer: null,
  }));
  grid.show([...grid.items.slice(0, grid.current + 1), ...more, ...grid.items.slice(grid.current + 1)], { keep: true });
  for (const id of [item.id, ...item.same]) grid.chosen.add(id);
  grid.paint();
  say(`${item.same.length + 1} photos chosen`);
}

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if ((event.ctrlKey || event.metaKey) && event.key === "z") {
    event.preventDefault();
    undo();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target;
  if (target.matches("input, select, textarea")) {
    if (event.key === "Escape") $("items").focus();
    return;
  }
  if (target.matches("button, a, summary") && (event.key === "Enter" || event.key === " ")) return;
  const position = positionOf(event.key);
  if (position !== null && state && position < state.classes.length) {
    event.preventDefault();
    label(state.classes[position].name);
  } else if (COMMANDS[event.key]) {
    event.preventDefault();
    COMMANDS[event.key]();
  }
});

$("name-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = $("name-input").value.trim();
  $("name-input").value = "";
  if (!name) return;
  const targets = grid.targets;
  inTurn(async () => {
    const found = await post("api/classes", { name });
    showState(found.state);
    send(targets, "label", found.name);
    $("items").focus({ preventScroll: true });
  });
});

$("import").addEventListener("change", async () => {
  const file = $("import").files[0];
  if (!file) return;
  const text = await file.text();
  inTurn(async () => {
    const found = await post("api/import", { text });
    showState(found.state);
    say(`${found.saved} labels imported, ${found.unused} rows not used`);
    $("final-state").textContent = `${found.saved} labels imported, ${found.unused} rows not used`;
    await fill({ fresh: true });
  });
});

for (const name of ["grid", "one", "check"]) $(`view-${name}`).addEventListener("click", () => setView(name));
$("undo").addEventListener("click", undo);
$("none").addEventListener("click", () => send(grid.targets, "none"));
$("skip").addEventListener("click", () => send(grid.targets, "skip"));
$("confirm").addEventListener("click", confirmAll);
$("check-class").addEventListener("change", () => inTurn(() => fill({ fresh: true })));
$("help-button").addEventListener("click", () => $("help").showModal());
$("more-button").addEventListener("click", () => {
  $("more").showModal();
  $("curve").replaceChildren(curve(state ? state.rounds : []));
});
$("train").addEventListener("click", () => inTurn(async () => showState(await post("api/train", {}))));
for (const name of ["zoom", "help", "more"]) $(`${name}-close`).addEventListener("click", () => $(name).close());
grid.onZoom = zoom;

setView("grid");
async function poll() {
  await inTurn(refresh);
  setTimeout(poll, state && state.ready ? 2000 : 700);
}
poll();
$("items").focus();
