
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const hidden = new Set();
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  // Theme: the system's, unless the reader chooses another; stored if the browser allows it.
  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  const setTheme = (theme) => {
    if (theme === "auto") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
    button.textContent = "Theme: " + theme;
    button.dataset.now = theme;
    try { localStorage.setItem("selftrain-theme", theme); } catch { /* no storage for this file */ }
  };
  let saved = "auto";
  try { saved = localStorage.getItem("selftrain-theme") || "auto"; } catch { /* as above */ }
  setTheme(themes.includes(saved) ? saved : "auto");
  button.addEventListener("click", () => {
    setTheme(themes[(themes.indexOf(button.dataset.now) + 1) % themes.length]);
  });

  // Runs: those that are not checked are hidden everywhere.
  for (const box of all("[data-toggle]")) {
    box.checked = true;
    box.addEventListener("change", () => {
      const run = box.dataset.toggle;
      if (box.checked) hidden.delete(+run); else hidden.add(+run);
      for (const element of all(`[data-run="${run}"]`)) element.classList.toggle("off", !box.checked);
    });
  }

  const showTip = (title, lines, x, y) => {
    tip.replaceChildren(make("strong", title));
    for (const [run, name, value] of lines) {
      const line = make("div");
      if (run !== null) line.append(make("i", undefined, "swatch s" + (run % 8)));
      line.append(make("span", name), make("b", value));
      tip.append(line);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
    tip.style.left = Math.max(6, left) + "px";
    tip.style.top = Math.max(6, Math.min(y + 14, innerHeight - box.height - 6)) + "px";
  };
  const asText = (title, lines) => title + ": " + lines.map(([, name, value]) => name + " " + value).join(", ");

  // Lines and bars: show the values nearest to the pointer, or move with the arrow keys.
  for (const figure of all("[data-chart]")) {
    const chart = data.charts[figure.dataset.chart];
    const plot = figure.querySelector(".plot");
    if (!chart || !plot) continue;
    const area = plot.querySelector(".area");
    const cursor = plot.querySelector(".cursor");
    const oneRun = figure.classList.contains("of-run");
    const last = chart.x.length - 1;
    let at = last;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-valuemin", "0");
    plot.setAttribute("aria-valuemax", String(last));
    plot.setAttribute("aria-valuenow", String(last));
    const show = (index, clientY) => {
      at = Math.max(0, Math.min(last, index));
      const lines = chart.series
        .filter((s) => !hidden.has(s.run) && s.text[at] !== null)
        .map((s) => [oneRun ? null : s.run, s.name, s.text[at]]);
      const box = area.getBoundingClientRect();
      const top = Math.min(...chart.series.map((s) => s.y[at]).filter((y) => y !== null), 100);
      cursor.style.left = chart.x[at] + "%";
      cursor.classList.add("on");
      plot.setAttribute("aria-valuenow", String(at));
      plot.setAttribute("aria-valuetext", asText(chart.labels[at], lines));
      showTip(chart.labels[at], lines, box.left + box.width * chart.x[at] / 100,
        clientY === undefined ? box.top + box.height * top / 100 : clientY);
    };
    const hide = () => { tip.hidden = true; cursor.classList.remove("on"); };
    plot.setAttribute("aria-valuetext", asText(chart.labels[last],
      chart.series.filter((s) => s.text[last] !== null).map((s) => [s.run, s.name, s.text[last]])));
    plot.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const x = 100 * (event.clientX - box.left) / box.width;
      let best = 0;
      chart.x.forEach((place, i) => { if (Math.abs(place - x) < Math.abs(chart.x[best] - x)) best = i; });
      show(best, event.clientY);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) show(at); });
    plot.addEventListener("keydown", (event) => {
      const jump = Math.max(1, Math.round(last / 10));
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: last,
        PageUp: at + jump, PageDown: at - jump }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }

  // Confusion matrices: rows are true classes, columns are predicted classes.
  for (const figure of all("[data-matrix]")) {
    const chart = data.charts[figure.dataset.matrix];
    const names = data.classes[chart.names];
    const matrix = figure.querySelector(".matrix");
    const square = figure.querySelector(".square");
    const mark = figure.querySelector(".cell");
    const K = chart.size;
    const counts = new Map();
    const support = new Array(K).fill(0);
    for (let i = 0; i < chart.cells.length; i += 3) {
      counts.set(chart.cells[i] * K + chart.cells[i + 1], chart.cells[i + 2]);
      support[chart.cells[i]] += chart.cells[i + 2];
    }
    let at = [0, 0];
    matrix.setAttribute("role", "slider");
    matrix.setAttribute("aria-valuemin", "0");
    matrix.setAttribute("aria-valuemax", String(K * K - 1));
    matrix.setAttribute("aria-valuenow", "0");
    matrix.setAttribute("aria-valuetext", K + " classes; use the arrow keys to move between squares");
    const show = (row, column, clientX, clientY) => {
      at = [Math.max(0, Math.min(K - 1, row)), Math.max(0, Math.min(K - 1, column))];
      const n = counts.get(at[0] * K + at[1]) || 0;
      const share = support[at[0]] ? (100 * n / support[at[0]]).toFixed(1) + "%" : "–";
      const title = at[0] === at[1] ? names[at[0]] + ", correct" : names[at[0]] + " classified as " + names[at[1]];
      const lines = [[null, data.noun, String(n)], [null, "share of its class", share]];
      mark.style.cssText = `left:${100 * at[1] / K}%;top:${100 * at[0] / K}%;width:${100 / K}%;height:${100 / K}%`;
      mark.classList.add("on");
      matrix.setAttribute("aria-valuenow", String(at[0] * K + at[1]));
      matrix.setAttribute("aria-valuetext", asText(title, lines));
      const box = square.getBoundingClientRect();
      showTip(title, lines, clientX ?? box.left + box.width * (at[1] + 1) / K,
        clientY ?? box.top + box.height * (at[0] + 0.5) / K);
    };
    const hide = () => { tip.hidden = true; mark.classList.remove("on"); };
    square.addEventListener("pointermove", (event) => {
      const box = square.getBoundingClientRect();
      show(Math.floor(K * (event.clientY - box.top) / box.height), Math.floor(K * (event.clientX - box.left) / box.width),
        event.clientX, event.clientY);
    });
    square.addEventListener("pointerleave", hide);
    matrix.addEventListener("blur", hide);
    matrix.addEventListener("focus", () => { if (matrix.matches(":focus-visible")) show(...at); });
    matrix.addEventListener("keydown", (event) => {
      const to = { ArrowRight: [at[0], at[1] + 1], ArrowLeft: [at[0], at[1] - 1], ArrowDown: [at[0] + 1, at[1]],
        ArrowUp: [at[0] - 1, at[1]] }[event.key];
      if (event.key === "Escape") hide();
      if (!to) return;
      event.preventDefault();
      show(...to);
    });
  }

  // Maps: show the point nearest to the pointer, or go through the points with the arrow keys; pick out one class.
  for (const figure of all("[data-map]")) {
    const chart = data.charts[figure.dataset.map];
    const names = data.classes[chart.names];
    const map = figure.querySelector(".map");
    const here = figure.querySelector(".here");
    const pick = figure.querySelector("[data-pick]");
    const order = chart.x.map((_, i) => i).sort((a, b) => chart.state[b] - chart.state[a]);
    const shown = () => order.filter((i) => pick.value === "" || chart.group[i] === +pick.value);
    let at = -1;
    map.setAttribute("role", "slider");
    map.setAttribute("aria-valuemin", "0");
    map.setAttribute("aria-valuemax", String(order.length - 1));
    map.setAttribute("aria-valuenow", "0");
    map.setAttribute("aria-valuetext", order.length + " points; use the arrow keys to move between them");
    const show = (i) => {
      at = i;
      const state = chart.states[chart.state[i]];
      const lines = state === "labeled" ? [[null, "labeled", names[chart.group[i]]]]
        : [[null, state === "predicted" ? "predicted" : state + ", perhaps", names[chart.group[i]]],
          [null, "confidence", chart.sure[i]]];
      here.style.left = chart.x[i] + "%";
      here.style.top = chart.y[i] + "%";
      here.classList.add("on");
      map.setAttribute("aria-valuenow", String(order.indexOf(i)));
      map.setAttribute("aria-valuetext", asText(chart.name[i], lines));
      const box = map.getBoundingClientRect();
      showTip(chart.name[i], lines, box.left + box.width * chart.x[i] / 100, box.top + box.height * chart.y[i] / 100);
    };
    const hide = () => { tip.hidden = true; here.classList.remove("on"); };
    map.addEventListener("pointermove", (event) => {
      const box = map.getBoundingClientRect();
      const far = (i) => Math.hypot(box.width * chart.x[i] / 100 - (event.clientX - box.left),
        box.height * chart.y[i] / 100 - (event.clientY - box.top));
      const best = shown().reduce((a, b) => (a === null || far(b) < far(a) ? b : a), null);
      if (best !== null && far(best) < 24) show(best); else hide();
    });
    map.addEventListener("pointerleave", hide);
    map.addEventListener("blur", hide);
    map.addEventListener("keydown", (event) => {
      const some = shown();
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || !some.length) return;
      event.preventDefault();
      const place = some.indexOf(at);
      show(some[place < 0 ? 0 : Math.max(0, Math.min(some.length - 1, place + step))]);
    });
    pick.addEventListener("change", () => {
      hide();
      map.classList.toggle("picking", pick.value !== "");
      const path = pick.value === "" ? [] : shown().map((i) => `M${chart.x[i]} ${chart.y[i]}h0`);
      figure.querySelector(".picked").setAttribute("d", path.join(""));
    });
  }

  // The table of classes: sort by any column, search by name.
  for (const table of all("[data-sortable]")) {
    const heads = all("thead th", table);
    const body = table.tBodies[0];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        return column === 0 ? cell.textContent.trim() : cell.dataset.v === undefined ? Infinity : +cell.dataset.v;
      };
      const compare = (a, b) => column === 0 ? value(a).localeCompare(value(b)) : value(a) - value(b);
      const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b));
      body.replaceChildren(...rows);
    }));
    const search = table.closest(".class-table").querySelector("[data-filter]");
    if (search) search.addEventListener("input", () => {
      const word = search.value.trim().toLowerCase();
      for (const row of body.rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(word);
    });
  }
})();
