// The photos on the page: one is current, several may be chosen. Knows nothing of the server.

export class Grid {
  constructor(element) {
    this.element = element;
    this.items = [];
    this.current = 0;
    this.chosen = new Set();
    this.marked = new Set();
    this.onZoom = () => {};
    this.onMove = () => {};
    element.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (!option) return;
      this.move(this.items.findIndex((item) => item.id === Number(option.dataset.id)));
      if (event.target.closest(".zoom")) this.onZoom(this.item);
      else this.toggle();
    });
    element.addEventListener("dblclick", () => this.item && this.onZoom(this.item));
  }

  get item() {
    return this.items[this.current];
  }

  // The photos that an answer is for: those that are chosen, or else the current one.
  get targets() {
    if (this.chosen.size) return this.items.filter((item) => this.chosen.has(item.id));
    return this.item ? [this.item] : [];
  }

  show(items, { keep = false } = {}) {
    const before = keep && this.item ? this.item.id : null;
    this.items = items;
    const ids = new Set(items.map((item) => item.id));
    this.chosen = new Set([...this.chosen].filter((id) => ids.has(id)));
    this.marked = new Set([...this.marked].filter((id) => ids.has(id)));
    const place = items.findIndex((item) => item.id === before);
    this.current = Math.max(0, Math.min(place >= 0 ? place : this.current, items.length - 1));
    this.element.replaceChildren(...items.map((item) => this.option(item)));
    this.paint();
  }

  option(item) {
    const option = document.createElement("div");
    option.setAttribute("role", "option");
    option.id = `photo-${item.id}`;
    option.dataset.id = item.id;
    const image = document.createElement("img");
    image.src = `${this.element.dataset.mode === "one" ? "image" : "thumb"}/${item.id}`;
    image.alt = "";
    image.loading = "lazy";
    image.decoding = "async";
    image.addEventListener("error", () => image.classList.add("broken"));
    const zoom = document.createElement("button");
    zoom.type = "button";
    zoom.className = "zoom";
    zoom.tabIndex = -1;
    zoom.textContent = "⤢";
    zoom.setAttribute("aria-label", `Zoom ${item.name}`);
    const text = document.createElement("p");
    text.className = "about";
    option.append(image, zoom, text);
    return option;
  }

  paint() {
    for (const [i, item] of this.items.entries()) {
      const option = this.element.children[i];
      const answer = item.label ?? { none: "none of these", skip: "skipped" }[item.answer] ?? null;
      const guess = item.guess ? `${item.guess}? ${Math.round(100 * item.confidence)}%` : "";
      const wrong = this.marked.has(item.id);
      const words = [answer ? `✓ ${answer}` : guess, answer ? "" : item.why];
      if (!answer && item.same.length) words.push(`${item.same.length} nearly the same`);
      if (wrong) words.unshift("✗ wrong");
      const about = option.querySelector(".about");
      about.replaceChildren(...words.filter(Boolean).map((word) => {
        const line = document.createElement("span");
        line.textContent = word;
        return line;
      }));
      option.setAttribute("aria-label", [item.name, ...words].filter(Boolean).join(", "));
      option.setAttribute("aria-selected", String(this.chosen.has(item.id)));
      option.classList.toggle("current", i === this.current);
      option.classList.toggle("answered", Boolean(answer));
      option.classList.toggle("wrong", wrong);
    }
    const item = this.item;
    if (item) this.element.setAttribute("aria-activedescendant", `photo-${item.id}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  move(to) {
    if (!this.items.length) return;
    this.current = Math.max(0, Math.min(this.items.length - 1, to));
    this.paint();
    this.element.children[this.current].scrollIntoView({ block: "nearest" });
    this.onMove();
  }

  columns() {
    const first = this.element.children[0];
    if (!first) return 1;
    const top = first.offsetTop;
    return [...this.element.children].filter((child) => child.offsetTop === top).length;
  }

  toggle() {
    const item = this.item;
    if (!item) return;
    const set = this.element.dataset.mode === "check" ? this.marked : this.chosen;
    if (!set.delete(item.id)) set.add(item.id);
    this.paint();
  }
}
