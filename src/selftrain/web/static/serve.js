// The page that shows a model: one image is sent, one answer is shown.

import { get } from "./api.js";

const $ = (id) => document.getElementById(id);
let shown = null;

function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

function problem(text) {
  $("problem").textContent = text || "";
  $("problem").hidden = !text;
}

async function ask(file) {
  if (!file) return;
  problem("");
  $("status").textContent = "Looking at the photo";
  try {
    const response = await fetch("api/predict", { method: "POST", body: file, headers: { "content-type": "application/octet-stream" } });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    show(file, answer);
  } catch (error) {
    $("answer").hidden = true;
    problem(error instanceof TypeError ? "The server cannot be reached." : error.message);
  }
  $("status").textContent = "";
}

function show(file, answer) {
  if (shown) URL.revokeObjectURL(shown);
  shown = URL.createObjectURL(file);
  $("preview").src = shown;
  $("answer").hidden = false;
  $("label").textContent = answer.unknown ? "unknown" : answer.label;
  $("label").classList.toggle("unknown", answer.unknown);
  $("confidence").textContent = answer.unknown
    ? `It looks like none of the classes. The nearest guess would be ${answer.guess} (${percent(answer.confidence)}).`
    : `${percent(answer.confidence)} confident`;
  const best = Object.entries(answer.probabilities).slice(0, 5);
  $("bars").replaceChildren(...best.map(([name, share]) => {
    const row = document.createElement("li");
    const text = document.createElement("span");
    text.textContent = name;
    const bar = document.createElement("meter");
    bar.value = share;
    bar.setAttribute("aria-label", name);
    const number = document.createElement("span");
    number.className = "share";
    number.textContent = percent(share);
    row.append(text, bar, number);
    return row;
  }));
  $("near-box").hidden = !answer.nearest.length;
  $("near").replaceChildren(...answer.nearest.map((one) => {
    const item = document.createElement("li");
    const image = document.createElement("img");
    image.src = `near/${one.id}`;
    image.alt = `${one.label}: ${one.name}`;
    const text = document.createElement("p");
    text.textContent = `${one.label}, likeness ${one.likeness.toFixed(2)}`;
    item.append(image, text);
    return item;
  }));
}

const drop = $("drop");
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  ask(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => ask([...event.clipboardData.files][0]));
$("file").addEventListener("change", () => ask($("file").files[0]));

get("api/model").then((model) => {
  $("name").textContent = model.name;
  $("about").textContent = `${model.classes.length} classes: ${model.classes.slice(0, 12).join(", ")}${model.classes.length > 12 ? ", ..." : ""}`;
});
