// The estimated accuracy over labels given, as a small chart with its interval.

const SVG = "http://www.w3.org/2000/svg";

function made(name, values) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
  return element;
}

export function curve(rounds, width = 420, height = 160) {
  const known = rounds.filter((round) => round.estimate);
  const svg = made("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  if (!known.length) {
    svg.setAttribute("aria-label", "No estimate yet");
    return svg;
  }
  const most = Math.max(...known.map((round) => round.labels));
  const x = (round) => 36 + ((width - 46) * round.labels) / most;
  const y = (share) => 10 + (height - 34) * (1 - share);
  for (const share of [0, 0.5, 1]) {
    svg.append(made("line", { x1: 36, x2: width - 10, y1: y(share), y2: y(share), class: "rule" }));
    const text = made("text", { x: 30, y: y(share) + 4, "text-anchor": "end" });
    text.textContent = `${100 * share}%`;
    svg.append(text);
  }
  const high = known.map((round) => `${x(round)},${y(round.estimate.high)}`);
  const low = known.map((round) => `${x(round)},${y(round.estimate.low)}`).reverse();
  svg.append(made("polygon", { points: [...high, ...low].join(" "), class: "band" }));
  svg.append(made("polyline", { points: known.map((round) => `${x(round)},${y(round.estimate.accuracy)}`).join(" "), class: "line" }));
  const last = known[known.length - 1];
  svg.append(made("circle", { cx: x(last), cy: y(last.estimate.accuracy), r: 3.5, class: "dot" }));
  const axis = made("text", { x: width - 10, y: height - 6, "text-anchor": "end" });
  axis.textContent = `${most} labels`;
  svg.append(axis);
  svg.setAttribute("aria-label", `Estimated accuracy after ${last.labels} labels: ${Math.round(100 * last.estimate.accuracy)} percent`);
  return svg;
}
