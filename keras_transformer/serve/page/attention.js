// Draws which source words each word of a translation, or of the source, looked
// at.

import { element, rove, setTabStop } from "./elements.js";
import { alignGroups, groupPieces, groupWeights, mean } from "./pieces.js";

const SVG = "http://www.w3.org/2000/svg";
const WEAKEST = 0.03; // smaller weights are not drawn
const NAMED = 4; // words in a caption
const UNSURE = 0.5; // words of a smaller probability are marked
const OTHER = { source: "target", target: "source" };
const TEXTS = {
  decoder: {
    about: "What each word of the translation looked at",
    source: "Words of the source",
    target: "Words of the translation",
    table: "Rows: the translation. Columns: the source.",
  },
  alignment: {
    about: "Which words belong together, by all layers and heads",
    source: "Words of the source",
    target: "Words of the translation",
    table: "Rows: the translation. Columns: the source.",
  },
  encoder: {
    about: "What each word of the source looked at, in the source itself",
    source: "Source words that are looked at",
    target: "Source words that look",
    table: "Rows: source words that look. Columns: those looked at.",
  },
};

/**
 * Shows the attention of one sentence as lines and as a heat map.
 *
 * The side `target` looks, and the side `source` is looked at. In the view of
 * the encoder, both have the words of the source.
 *
 * `onGroups` is called when the words change, and `onHighlight(side, index,
 * weights)` when one is pointed at; without arguments when none is.
 */
export class AttentionView {
  constructor({ onGroups, onHighlight }) {
    for (const id of ["lines", "heat", "caption", "layer", "head"]) {
      this[id] = document.getElementById(id);
    }
    this.kind = document.getElementById("attention-kind");
    this.about = document.getElementById("attention-about");
    this.byPiece = document.getElementById("by-piece");
    this.onGroups = onGroups;
    this.onHighlight = onHighlight;
    this.languages = {};
    this.pinned = null;
    this.buttons = { source: [], target: [] };
    for (const choice of [this.kind, this.layer, this.head, this.byPiece]) {
      choice.addEventListener("change", () => this.render());
    }
    for (const input of document.querySelectorAll("input[name=view]")) {
      input.addEventListener("change", () => this.render());
    }
    new ResizeObserver(() => this.layOut()).observe(this.lines);
    for (const view of [this.lines, this.heat]) this.listen(view);
    rove(this.heat, "thead button");
    rove(this.heat, "tbody button");
  }

  listen(view) {
    const place = (event) => {
      const item = event.target.closest("[data-side]");
      return item && { side: item.dataset.side, index: +item.dataset.index };
    };
    view.addEventListener("pointerover", (event) => {
      const cell = event.target.closest("td");
      if (cell) this.pointAtCell(cell);
      else this.highlight(place(event) ?? this.pinned);
    });
    view.addEventListener("pointerleave", () => this.highlight(this.pinned));
    for (const name of ["focusin", "click"]) {
      view.addEventListener(name, (event) => {
        this.pinned = place(event) ?? this.pinned;
        this.highlight(this.pinned);
      });
    }
    view.addEventListener("focusout", () => this.release());
  }

  /** Forgets the word that has the focus. */
  release() {
    this.pinned = null;
    this.highlight(null);
  }

  /** Shows an answer of the signature `explain` for one sentence. */
  show(answer, languages) {
    this.languages = languages;
    this.answer = answer;
    this.render();
  }

  get isEncoder() {
    return this.kind.value === "encoder";
  }

  get isAlignment() {
    return this.kind.value === "alignment";
  }

  /** Returns whether the model was unsure of a word of the translation. */
  isUnsure(side, index) {
    return side === "target" && this.probabilities?.[index] < UNSURE;
  }

  get texts() {
    return TEXTS[this.kind.value];
  }

  get view() {
    return document.querySelector("input[name=view]:checked").value;
  }

  matrix() {
    const choose = (list, { value }) => (value ? [list[value - 1]] : list);
    const layers = choose(this.attention, this.layer);
    return mean(layers.flatMap((heads) => choose(heads, this.head)));
  }

  render() {
    if (!this.answer) return;
    this.pinned = null;
    const { answer } = this;
    this.attention = this.isEncoder
      ? answer.encoder_attention
      : answer.attention;
    setOptions(this.layer, this.attention.length, "Mean of layers");
    setOptions(this.head, this.attention[0].length, "Mean of heads");
    this.about.textContent = this.texts.about;
    const pieces = (list) =>
      groupPieces(
        list.filter((piece) => piece),
        this.byPiece.checked,
      );
    this.groups = {
      source: pieces(answer.source_pieces),
      target: pieces(
        this.isEncoder ? answer.source_pieces : answer.target_pieces,
      ),
    };
    const { source, target } = this.groups;
    this.probabilities = this.isEncoder
      ? null
      : target.map(({ indices }) =>
          Math.exp(indices.reduce((sum, i) => sum + answer.log_probs[i], 0)),
        );
    this.layer.disabled = this.head.disabled = this.isAlignment;
    this.weights = this.isAlignment
      ? alignGroups(mean(this.attention.flat()), target, source)
      : groupWeights(this.matrix(), target, source);
    this.lines.hidden = this.view !== "lines";
    this.heat.hidden = this.view !== "heat";
    this.lines.replaceChildren();
    this.heat.replaceChildren();
    if (this.view === "lines") this.renderLines();
    else this.renderHeat();
    this.onGroups(this.groups);
    this.highlight(null);
  }

  /** Returns the weights of a word on all words of the other side. */
  weightsOf({ side, index }) {
    if (side === "target") return this.weights[index];
    return this.weights.map((row) => row[index]);
  }

  describe({ side, index }) {
    const others = this.groups[OTHER[side]];
    const weights = this.weightsOf({ side, index });
    return weights
      .map((weight, i) => ({ weight, group: others[i] }))
      .sort((a, b) => b.weight - a.weight)
      .filter(({ weight }, i) => i < NAMED && weight >= 0.01)
      .map(({ weight, group }) =>
        this.isAlignment
          ? quoted(group)
          : `${quoted(group)} ${percent(weight)}`,
      )
      .join(", ");
  }

  button(side, index) {
    const group = this.groups[side][index];
    const button = element("button", {
      type: "button",
      className: "word",
      textContent: group.text,
    });
    button.dataset.side = side;
    button.dataset.index = index;
    button.classList.toggle("starts", group.starts);
    button.classList.toggle("end", group.end);
    button.classList.toggle("unsure", this.isUnsure(side, index));
    button.setAttribute(
      "aria-label",
      `${quoted(group)}: ${this.describe({ side, index }) || "none"}`,
    );
    return button;
  }

  languageOf(side) {
    return this.languages[this.isEncoder ? "source" : side];
  }

  row(side) {
    const row = element("div", { className: "row", role: "group" });
    row.setAttribute("aria-label", this.texts[side]);
    row.lang = this.languageOf(side);
    this.buttons[side] = this.groups[side].map((_, i) => this.button(side, i));
    row.append(...this.buttons[side]);
    rove(row, "button");
    setTabStop(row, "button");
    return row;
  }

  renderLines() {
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("aria-hidden", "true");
    this.lines.append(
      this.svg,
      this.row("source"),
      this.row("target"),
    );
    this.layOut();
  }

  /** Chooses two rows, or two columns where rows are too wide, and draws. */
  layOut() {
    if (!this.weights || this.lines.hidden) return;
    const rows = [...this.lines.querySelectorAll(".row")];
    this.lines.classList.remove("columns");
    const wide = rows.some((row) => row.scrollWidth > this.lines.clientWidth);
    this.lines.classList.toggle("columns", wide);
    const frame = this.lines.getBoundingClientRect();
    const boxes = (side) =>
      this.buttons[side].map((button) => button.getBoundingClientRect());
    const source = boxes("source");
    const target = boxes("target");
    this.svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    this.svg.replaceChildren();
    this.paths = this.weights.map((row, t) =>
      row.map((weight, s) => {
        if (weight < WEAKEST) return null;
        const shape = curve(source[s], target[t], frame, wide);
        return this.svg.appendChild(path(shape, weight));
      }),
    );
  }

  renderHeat() {
    const { source, target } = this.groups;
    const head = element("tr", {}, element("td"));
    source.forEach((_, i) => head.append(this.header("source", i, "col")));
    const body = target.map((_, t) => {
      const row = element("tr", {}, this.header("target", t, "row"));
      row.append(...source.map((_, s) => this.cell(t, s)));
      return row;
    });
    const caption = element("caption", {
      className: "visually-hidden",
      textContent: this.texts.table,
    });
    const table = element(
      "table",
      {},
      caption,
      element("thead", {}, head),
      element("tbody", {}, ...body),
    );
    this.heat.append(table);
    setTabStop(this.heat, "thead button");
    setTabStop(this.heat, "tbody button");
    this.buttons = {
      source: [...table.querySelectorAll("thead button")],
      target: [...table.querySelectorAll("tbody button")],
    };
  }

  header(side, index, scope) {
    const button = this.button(side, index);
    return element("th", { scope, lang: this.languageOf(side) }, button);
  }

  cell(t, s) {
    const text = element("span", {
      className: "visually-hidden",
      textContent: percent(this.weights[t][s]),
    });
    const cell = element("td", {}, text);
    cell.dataset.cell = `${t} ${s}`;
    cell.style.setProperty("--weight", this.weights[t][s].toFixed(3));
    return cell;
  }

  pointAtCell(cell) {
    if (!cell.dataset.cell) return;
    const [t, s] = cell.dataset.cell.split(" ").map(Number);
    const { source, target } = this.groups;
    this.highlight({ side: "target", index: t });
    if (this.isAlignment) return;
    const words = `${quoted(target[t])} looked at ${quoted(source[s])}`;
    this.caption.textContent = `${words} ${percent(this.weights[t][s])}`;
  }

  /** Shows what one word looked at; without a place, shows all. */
  highlight(place) {
    if (!this.weights) return;
    const weights = place && this.weightsOf(place);
    for (const side of ["source", "target"]) {
      this.buttons[side].forEach((button, i) => {
        const isIt = place?.side === side && place.index === i;
        const weight = place && place.side !== side ? weights[i] : 0;
        button.classList.toggle("current", isIt);
        button.style.setProperty("--weight", weight.toFixed(3));
      });
    }
    this.lines.classList.toggle("chosen", Boolean(place));
    this.markPaths(place);
    this.markRows(place);
    this.caption.textContent = place ? this.sentenceOn(place) : this.hint();
    if (place) this.onHighlight(place.side, place.index, weights);
    else this.onHighlight();
  }

  markPaths(place) {
    if (this.lines.hidden) return;
    this.paths.forEach((row, t) =>
      row.forEach((line, s) => {
        const index = place?.side === "target" ? t : s;
        line?.classList.toggle("current", place?.index === index);
      }),
    );
  }

  markRows(place) {
    for (const cell of this.heat.querySelectorAll("td[data-cell]")) {
      const [t, s] = cell.dataset.cell.split(" ").map(Number);
      const index = place?.side === "target" ? t : s;
      cell.classList.toggle("faded", Boolean(place) && place.index !== index);
    }
  }

  sentenceOn(place) {
    const word = quoted(this.groups[place.side][place.index]);
    const looked =
      place.side === "target" ? "looked at" : "was looked at by";
    const verb = this.isAlignment ? "belongs to" : looked;
    const sentence = `${word} ${verb} ${this.describe(place) || "nothing"}`;
    if (place.side === "source" || !this.probabilities) return sentence;
    const probability = percent(this.probabilities[place.index]);
    return `${sentence}. Probability: ${probability}`;
  }

  hint() {
    const hint = "Point at a word, or move to it with Tab and the arrow keys.";
    if (this.isEncoder) return `${this.directions()} ${hint}`;
    const isMarked = this.probabilities.some((p) => p < UNSURE);
    return isMarked ? `${hint} The model is unsure of dotted words.` : hint;
  }

  /** Says where the words that look are, since both sides have the same. */
  directions() {
    if (this.view === "heat") return "The rows look at the columns.";
    return this.lines.classList.contains("columns")
      ? "The right column looks at the left one."
      : "The lower row looks at the upper one.";
  }
}

function quoted({ text, end }) {
  return end ? "the end" : `“${text}”`;
}

function percent(weight) {
  return `${Math.round(100 * weight)} %`;
}

function setOptions(select, count, all) {
  if (select.options.length === count + 1) return;
  const numbers = Array.from({ length: count }, (_, i) => i + 1);
  select.replaceChildren(
    new Option(all, ""),
    ...numbers.map((number) => new Option(String(number), number)),
  );
}

/** Returns a curve between two words, sideways between columns. */
function curve(source, target, frame, sideways) {
  const x = (box) => box.left + box.width / 2 - frame.left;
  const y = (box) => box.top + box.height / 2 - frame.top;
  if (sideways) {
    const from = [source.right - frame.left, y(source)];
    const to = [target.left - frame.left, y(target)];
    const middle = (from[0] + to[0]) / 2;
    return `M${from}C${middle},${from[1]} ${middle},${to[1]} ${to}`;
  }
  const from = [x(source), source.bottom - frame.top];
  const to = [x(target), target.top - frame.top];
  const middle = (from[1] + to[1]) / 2;
  return `M${from}C${from[0]},${middle} ${to[0]},${middle} ${to}`;
}

function path(shape, weight) {
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", shape);
  line.setAttribute("stroke-width", (0.75 + 6 * weight).toFixed(2));
  line.setAttribute("stroke-opacity", (0.08 + 0.92 * weight).toFixed(2));
  return line;
}
