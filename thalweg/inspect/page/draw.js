// Draws a laid-out graph: colours, boxes, edges. Only items in or near the viewport are drawn. When
// zoomed out so far that names are unreadable, all boxes of a colour are one path, so that graphs of
// many thousand nodes pan smoothly.
"use strict";

const NAME = 0, TYPE = 1, LINE = 2, DEVICE = 3, KERNEL = 4;
const MIN_TEXT_SCALE = 0.4;  // names are not drawn below this scale
const NEUTRAL = "#e4e4e4";
const SVG = "http://www.w3.org/2000/svg", SVG_TAGS = new Set(["g", "rect", "text", "path", "title", "svg"]);

function el(tag, attributes, ...children) {
  const made = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") made.addEventListener("click", value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const pen = document.createElement("canvas").getContext("2d"), widths = new Map();
pen.font = "12px system-ui, sans-serif";
function textWidth(text) {
  if (!widths.has(text)) widths.set(text, pen.measureText(text).width);
  return widths.get(text);
}

function shortName(key) {
  const parts = key.split("/");
  return key.endsWith("/") ? parts.at(-2) : parts.at(-1);
}

// Colours: a hue per op or device, by descending number of nodes; a heat map for time.

function categories(step, index) {
  const counts = new Map();
  for (const node of step.nodes) counts.set(node[index], (counts.get(node[index]) || 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]).map(([value]) => value);
  return new Map(sorted.map((value, n) => [value, categoryColour(n)]));
}

function categoryColour(n) {
  return `hsl(${Math.round(210 + n * 137.5) % 360} ${n < 12 ? 62 : 35}% ${n % 2 ? 80 : 74}%)`;
}

function heatColour(share) {
  const part = Math.sqrt(Math.min(share, 1));
  return `hsl(${Math.round(52 - 46 * part)} 88% ${Math.round(90 - 28 * part)}%)`;
}

function itemSeconds(step, members) {
  // The time of the kernels that compute any of these nodes.
  const kernels = new Set(members.map((number) => step.nodes[number][KERNEL]));
  let sum = 0;
  for (const each of kernels) if (each >= 0) sum += step.kernels[each].seconds || 0;
  return sum;
}

function painter(step, mode, items) {
  // A function from an item to its colours, each with its number of nodes.
  if (mode === "time") {
    for (const each of items) if (each.kind !== "open") each.seconds = itemSeconds(step, each.members);
    const most = Math.max(...items.map((each) => each.seconds || 0), 1e-12);
    return (item) => [[item.seconds ? heatColour(item.seconds / most) : NEUTRAL, 1]];
  }
  const known = mode === "kernel" ? null : categories(step, mode === "device" ? DEVICE : TYPE);
  const colour = (node) => {
    if (known) return known.get(node[mode === "device" ? DEVICE : TYPE]);
    return node[KERNEL] < 0 ? NEUTRAL : categoryColour(node[KERNEL]);
  };
  return (item) => {
    const counts = new Map();
    for (const number of item.members) {
      const each = colour(step.nodes[number]);
      counts.set(each, (counts.get(each) || 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1]);
  };
}

// Marks: nodes that a pass added, and nodes that the next one removes.

function changes(step, number) {
  const numbers = (stage) => new Set(stage ? stage.nodes.map((each) => each[0]) : []);
  const [before, now, after] = [-1, 0, 1].map((offset) => numbers(step.stages[number + offset]));
  const last = number === step.stages.length - 1;
  return {
    made: number ? new Set([...now].filter((each) => !before.has(each))) : new Set(),
    gone: last ? new Set() : new Set([...now].filter((each) => !after.has(each))),
  };
}

function tally(item, set) { return item.members.reduce((sum, each) => sum + set.has(each), 0); }

function label(item, marks) {
  const name = shortName(item.key);
  if (item.kind === "node") return name;
  if (item.kind === "open") return `− ${name}`;
  const made = tally(item, marks.made), gone = tally(item, marks.gone);
  return `${name} (${item.members.length})${made ? ` +${made}` : ""}${gone ? ` −${gone}` : ""}`;
}

// Boxes and edges

function visible(item, area) {
  return item.x < area.right && item.x + item.width > area.left
      && item.y < area.bottom && item.y + item.height > area.top;
}

function edgePath({ from, to }, area) {
  const x = from.x + from.width / 2, y = from.y + from.height, p = to.x + to.width / 2, q = to.y;
  if (Math.max(x, p) < area.left || Math.min(x, p) > area.right
      || Math.max(y, q) < area.top || Math.min(y, q) > area.bottom) return "";
  const bend = q > y ? Math.max((q - y) / 2, 14) : 60;
  const n = Math.round;
  return `M${n(x)} ${n(y)}C${n(x)} ${n(y + bend)} ${n(p)} ${n(q - bend)} ${n(p)} ${n(q)}`;
}

function farLabels(items, scale) {
  // Zoomed out: the names of open scopes that fit on the screen, outer scopes first.
  const taken = [], found = [];
  for (const each of items) {
    const text = shortName(each.key), width = textWidth(text) + 8;
    if (each.width * scale < width || each.height * scale < 18) continue;
    const x = each.x * scale + 4, y = each.y * scale + 2;
    if (taken.some((box) => x < box.x + box.width && box.x < x + width && Math.abs(y - box.y) < 16)) continue;
    taken.push({ x, y, width });
    found.push(el("text", { class: "far", x: x / scale, y: (y + 12) / scale, "font-size": 12 / scale,
      "stroke-width": 3 / scale }, text));
  }
  return found;
}

function drawScope(item) {
  return el("g", { class: `scope ${item.depth % 2 ? "odd" : "even"}`, "data-key": item.key,
      transform: `translate(${item.x} ${item.y})` },
    el("rect", { class: "box", width: item.width, height: item.height }),
    el("rect", { class: "head", width: item.width, height: HEADER, rx: 8 }),
    el("text", { x: 10, y: 16 }, item.label),
    el("title", {}, `${item.key} (click to close)`));
}

function drawBox(item, colours, text, step) {
  const total = colours.reduce((sum, each) => sum + each[1], 0);
  const box = el("g", { class: `node ${item.kind}`, "data-key": item.key,
      transform: `translate(${item.x} ${item.y})` },
    el("rect", { class: "box", width: item.width, height: item.height,
      fill: colours.length === 1 ? colours[0][0] : "#f1f1f1" }));
  if (colours.length > 1) {
    let x = 5;
    for (const [colour, count] of colours) {
      const width = (item.width - 10) * count / total;
      box.append(el("rect", { x, y: item.height - 6, width, height: 4, fill: colour }));
      x += width;
    }
  }
  if (text) box.append(el("text", { x: item.width / 2, y: item.kind === "node" ? 17 : 15 }, item.label));
  box.append(el("title", {}, title(item, step)));
  return box;
}

function drawFar(items, colours) {
  // The boxes of each colour as one path. A box of several colours takes that of most of its nodes.
  const paths = new Map();
  for (const each of items) {
    const [[colour]] = colours(each), n = Math.round;
    paths.set(colour, `${paths.get(colour) || ""}M${n(each.x)} ${n(each.y)}h${n(each.width)}v${each.height}h${
      -n(each.width)}z`);
  }
  return [...paths].map(([fill, d]) => el("path", { class: "boxes", fill, d }));
}

function itemAt(items, x, y) {
  // The innermost item at a point of the graph.
  return items.findLast((each) => x >= each.x && x <= each.x + each.width
    && y >= each.y && y <= each.y + (each.kind === "open" ? HEADER : each.height));
}

function title(item, step) {
  const seconds = itemSeconds(step, item.members);
  const time = seconds ? `\nits kernels take ${amount(seconds * 1e6, "µs")}` : "";
  if (item.kind === "closed") return `${item.key} ${item.members.length} nodes (click to open)${time}`;
  return `${item.key}: ${step.nodes[item.members[0]][TYPE]}${time}`;
}

function amount(value, unit) {
  const names = ["", "k", "M", "G", "T"];
  let n = 0;
  while (value >= 1000 && n < names.length - 1) { value /= 1000; n += 1; }
  return `${+value.toPrecision(3)} ${names[n]}${unit}`;
}
