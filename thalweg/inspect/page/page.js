// The page: the selection, the panels around the graph, zoom and clicks.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const state = { step: 0, stage: 0, open: new Set(), colour: "type", chosen: null, kernel: null,
  slowest: false };
const view = { x: 0, y: 0, scale: 1 };  // the top left point of the graph in view, pixels per unit
const MAX_OPEN = 60;  // larger graphs are shown with closed scopes at first
const MAX_LEGEND = 10;
let scene = null, marks = null, drawn = null;

const theStep = () => data.steps[state.step];
const theStage = () => theStep().stages[state.stage];

// The graph

function names(step) { return step.names ||= step.nodes.map((node) => node[NAME]); }
function paths(stage) { return stage.paths ||= scopePaths(stage, names(theStep())); }

function arrangeGraph() {
  const step = theStep();
  marks = changes(step, state.stage);
  const measure = (item) => textWidth(item.label = label(item, marks));
  scene = layout(theStage(), names(step), paths(theStage()), state.open, measure);
  scene.byKey = new Map(scene.items.map((each) => [each.key, each]));
  drawGraph();
}

function frame() { return byId("graph").getBoundingClientRect(); }

function drawGraph() {
  const { width, height } = frame(), step = theStep();
  const w = width / view.scale, h = height / view.scale;
  const area = { left: view.x - w, right: view.x + 2 * w, top: view.y - h, bottom: view.y + 2 * h };
  const text = view.scale >= MIN_TEXT_SCALE, colours = painter(step, state.colour, scene.items);
  const lines = { edge: "", "edge control": "", "edge near": "" };
  const chosen = scene.leaves.get(state.chosen);
  for (const each of scene.edges) {
    const near = each.from === chosen || each.to === chosen;
    lines[near ? "edge near" : each.control ? "edge control" : "edge"] += edgePath(each, area);
  }
  const seen = scene.items.filter((each) => visible(each, area));
  const large = (each) => each.height * view.scale > 12;  // smaller ones are unrecognisable
  const scopes = seen.filter((each) => each.kind === "open" && (text || large(each)));
  const boxes = seen.filter((each) => each.kind !== "open");
  const one = (each) => marked(each, drawBox(each, colours(each), text, step));
  byId("view").replaceChildren(...scopes.map(drawScope),
    ...Object.entries(lines).filter(([, d]) => d).map(([name, d]) => el("path", { class: name, d })),
    ...(text ? [] : drawFar(boxes, colours)),
    ...boxes.filter((each) => text || marksOf(each).length).map(one));
  drawn = { area, scale: view.scale, text, scopes };
  look();
  showLegend(step);
}

function marksOf(item) {
  const only = item.kind === "node" ? item.members[0] : null, { nodes } = theStep(), found = [];
  if (item.members.some((each) => marks.made.has(each))) found.push("new");
  if (item.members.some((each) => marks.gone.has(each))) found.push("gone");
  if (only !== null && only === state.chosen) found.push("chosen");
  if (state.kernel !== null && item.members.some((each) => nodes[each][KERNEL] === state.kernel)) found.push("kin");
  return found;
}

function marked(item, box) {
  box.classList.add(...marksOf(item));
  return box;
}

function look() {
  const at = `scale(${view.scale}) translate(${-view.x} ${-view.y})`;
  byId("view").setAttribute("transform", at);
  byId("names").setAttribute("transform", at);
  byId("names").replaceChildren(...(drawn.text ? [] : farLabels(drawn.scopes, view.scale)));
}

let waiting = false;
function moved() {
  // Moves the drawing at once; redraws when the view leaves it or the scale has changed too much.
  look();
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const { width, height } = frame(), { area, scale, text } = drawn;
    const outside = view.x < area.left || view.y < area.top
      || view.x + width / view.scale > area.right || view.y + height / view.scale > area.bottom;
    const other = text !== view.scale >= MIN_TEXT_SCALE || view.scale > 2.5 * scale;
    if (outside || other) drawGraph();
  });
}

function fit() {
  const { width, height } = frame(), margin = 24;
  view.scale = Math.min(1.3, (width - 2 * margin) / scene.width, (height - 2 * margin) / scene.height);
  view.x = (scene.width - width / view.scale) / 2;
  view.y = (scene.height - height / view.scale) / 2;
  drawGraph();
}

function zoom(factor, x, y) {
  // Keeps the point under the pointer in place.
  const scale = Math.min(Math.max(view.scale * factor, 0.005), 4);
  view.x += x / view.scale - x / scale;
  view.y += y / view.scale - y / scale;
  view.scale = scale;
  moved();
}

function toggle(key) {
  // Keeps the scope that is opened or closed under the pointer.
  const scope = key.slice(0, -1), before = scene.byKey.get(key);
  const x = (before.x + before.width / 2 - view.x), y = before.y - view.y;
  if (state.open.has(scope)) state.open.delete(scope); else state.open.add(scope);
  arrangeGraph();
  const after = scene.byKey.get(key) || scene.leaves.get(before.members[0]);
  view.x = after.x + after.width / 2 - x;
  view.y = after.y - y;
  drawGraph();
}

function reveal(number, stage) {
  // Shows a node in a stage that contains it: opens the scopes around it and moves there.
  state.stage = stage;
  for (const scope of paths(theStage()).get(number)) state.open.add(scope);
  state.chosen = number;
  showStages();
  arrangeGraph();
  const item = scene.leaves.get(number), { width, height } = frame();
  view.scale = Math.max(view.scale, 0.9);
  view.x = item.x + item.width / 2 - width / view.scale / 2;
  view.y = item.y + item.height / 2 - height / view.scale / 2;
  drawGraph();
}

function openAll(step) {
  for (const stage of step.stages)
    for (const path of paths(stage).values()) for (const scope of path) state.open.add(scope);
}

function showLegend(step) {
  const shown = state.colour === "time" ? timeLegend() : state.colour === "kernel"
    ? [el("span", {}, "one colour for each kernel"), entry(NEUTRAL, "no kernel")] : categoryLegend(step);
  const outline = (name, text) =>
    el("span", {}, el("i", { class: "outline", style: `border-color: var(--${name})` }), text);
  if (marks.made.size) shown.push(outline("new", "made by this pass"));
  if (marks.gone.size) shown.push(outline("gone", "removed by the next pass"));
  byId("legend").replaceChildren(...shown);
}

function entry(colour, text) { return el("span", {}, el("i", { style: `background: ${colour}` }), text); }

function timeLegend() {
  const most = Math.max(...scene.items.map((each) => each.seconds || 0));
  const stops = [0, 0.1, 0.25, 0.5, 0.75, 1].map((part) => `${heatColour(part)} ${part * 100}%`);
  const scale = el("i", { class: "scale", style: `background: linear-gradient(to right, ${stops})` });
  return [el("span", {}, "0 ", scale, amount(most * 1e6, "µs")), entry(NEUTRAL, "no kernel")];
}

function categoryLegend(step) {
  const index = state.colour === "device" ? DEVICE : TYPE;
  const present = new Set(theStage().nodes.map(([number]) => step.nodes[number][index]));
  const known = [...categories(step, index)].filter(([each]) => present.has(each));
  const shown = known.slice(0, MAX_LEGEND).map(([each, colour]) => entry(colour, each || "the only device"));
  if (known.length > MAX_LEGEND) shown.push(el("span", {}, `and ${known.length - MAX_LEGEND} more`));
  return shown;
}

// Panels

function showStages() {
  const { stages } = theStep();
  byId("stages").replaceChildren(el("h2", {}, "Graph after each pass"), ...stages.map((stage, n) => {
    const delta = n ? stage.nodes.length - stages[n - 1].nodes.length : 0;
    const change = delta ? ` (${delta > 0 ? "+" : "−"}${Math.abs(delta)})` : "";
    return el("button", { class: "stage", "aria-pressed": n === state.stage, "data-stage": n,
        title: `${stage.nodes.length} nodes`, onclick: () => showStage(n) },
      stage.pass || "as it is written",
      el("small", {}, `${stage.nodes.length}${change}`));
  }));
}

function showStage(number) {
  // Keeps the point at the centre of the window in place.
  const before = scene;
  state.stage = number;
  showStages();
  arrangeGraph();
  const { left, right, top, bottom } = inSight();
  const away = (each) => Math.hypot(each.x + each.width / 2 - (left + right) / 2, each.y - (top + bottom) / 2);
  const kept = before.items.filter((each) => each.kind !== "open" && scene.byKey.has(each.key));
  if (!kept.length) { fit(); return; }
  const anchor = kept.reduce((best, each) => (away(each) < away(best) ? each : best));
  const now = scene.byKey.get(anchor.key);
  view.x += now.x + now.width / 2 - anchor.x - anchor.width / 2;
  view.y += now.y - anchor.y;
  drawGraph();
}

function showNode(number) {
  const step = theStep(), node = step.nodes[number], kernel = step.kernels[node[KERNEL]];
  const inputs = (theStage().nodes.find((each) => each[0] === number) || [0, []])[1];
  const row = (name, ...value) => el("tr", {}, el("td", { class: "dim" }, name), el("td", {}, ...value));
  const other = (each) => el("div", {}, el("a", { onclick: () => pick(each) }, step.nodes[each][NAME]));
  byId("chosen").replaceChildren(el("h2", {}, node[NAME]), el("table", {},
    row("op", node[TYPE]), row("device", node[DEVICE] || "the only one"),
    ...(inputs.length ? [row("inputs", ...[...new Set(inputs)].map(other))] : []),
    row("kernel", kernel ? el("a", { onclick: () => pickKernel(node[KERNEL]) },
      `${node[KERNEL] + 1}: ${kernel.name}`) : "none"),
    row("line", sourceLink(step, node[LINE]))));
  showSource(step.lines[node[LINE]]);
}

function pick(number) {
  if (!scene.leaves.has(number)) return;
  showNode(number);
  const item = scene.leaves.get(number);
  if (item.kind === "node" && visible(item, inSight())) { state.chosen = number; drawGraph(); }
  else reveal(number, state.stage);
}

function inSight() {
  const { width, height } = frame();
  return { left: view.x, top: view.y, right: view.x + width / view.scale, bottom: view.y + height / view.scale };
}

function fileName(where) { return where.split("/").pop(); }

function sourceLink(step, line) {
  const where = step.lines[line];
  return el("a", { title: where, onclick: () => showSource(where) }, fileName(where));
}

function showSource(where) {
  const at = where.lastIndexOf(":"), file = where.slice(0, at), line = +where.slice(at + 1);
  byId("source")?.remove();
  const text = data.sources[file];
  if (!text) return;
  const first = Math.max(0, line - 5);
  byId("chosen").append(el("pre", { id: "source" }, ...text.slice(first, line + 4).map((each, n) =>
    el(first + n + 1 === line ? "mark" : "span", {}, `${String(first + n + 1).padStart(4)}  ${each}`))));
}

function showFacts() {
  const step = theStep();
  byId("facts").replaceChildren(el("h2", {}, "Rules that fired"), ...step.passes.map((each) => passFacts(step, each)));
  if (!step.passes.length) byId("facts").append(el("p", { class: "dim" }, "none"));
  if (step.memory.length) byId("facts").append(el("h2", {}, "Memory of temporaries, kernel by kernel"),
    memoryCurve(step.memory));
  byId("facts").append(el("h2", {}, "Kernels"), el("table", { id: "kernels" }));
  showKernels();
}

function passFacts(step, pass) {
  const rules = Object.entries(pass.fired).map(([rule, count]) => {
    const at = pass.places.filter((place) => place[0] === rule);
    const more = at.length > 50 ? [el("li", { class: "dim" }, `and ${at.length - 50} more`)] : [];
    return [el("div", {}, el("a", { class: "rule", onclick: () => showPlace(pass, at[0]) }, rule), ` ×${count}`),
      el("ul", {}, ...at.slice(0, 50).map((place) => el("li", {},
        el("a", { class: "place", onclick: () => showPlace(pass, place) }, place[1]), " ",
        el("span", { class: "dim" }, fileName(step.lines[place[2]])))), ...more)];
  });
  return el("details", { "data-pass": pass.name, ...(step.passes.length <= 3 ? { open: "" } : {}) },
    el("summary", {}, `${pass.name} `,
      el("small", {}, `${pass.before} → ${pass.after} nodes, ${(pass.seconds * 1e3).toFixed(2)} ms`)),
    el("p", { class: "dim" }, pass.reason), ...rules.flat());
}

function showPlace(pass, place) {
  // The node before the pass, if there is one, and the line that created it.
  if (!place) return;
  const step = theStep(), [, name, line] = place;
  const number = names(step).indexOf(name);
  const has = (stage) => stage.nodes.some((each) => each[0] === number);
  const after = step.stages.findIndex((stage, n) => stage.pass === pass.name && n > 0 && has(step.stages[n - 1]));
  const stage = after > 0 ? after - 1 : step.stages.findIndex(has);
  if (number >= 0 && stage >= 0) {
    reveal(number, stage);
    showNode(number);
  } else byId("chosen").replaceChildren(el("h2", {}, name), sourceLink(step, line));
  showSource(step.lines[line]);
}

function showKernels() {
  const step = theStep(), most = Math.max(...step.kernels.map((each) => each.seconds || 0), 1e-12);
  const order = step.kernels.map((_, n) => n);
  if (state.slowest) order.sort((a, b) => (step.kernels[b].seconds || 0) - (step.kernels[a].seconds || 0));
  const heading = (text, width) => el("th", { class: "number dim", style: width && `width: ${width}` }, text);
  const time = el("a", { id: "slowest", onclick: () => { state.slowest = !state.slowest; showKernels(); } },
    state.slowest ? "time ↓" : "time");
  const headings = el("tr", {}, heading("", "2.6em"), heading("", ""), heading("flop", "4.6em"),
    heading("bytes", "4.8em"), el("th", { class: "number", style: "width: 5.4em" }, time));
  byId("kernels").replaceChildren(headings, ...order.map((n) => {
    const each = step.kernels[n];
    return el("tr", { class: "kernel", "data-kernel": n, "aria-selected": n === state.kernel,
        title: `${each.name}, ${each.space}`, onclick: () => pickKernel(n) },
      el("td", { class: "number dim" }, String(n + 1)), el("td", {}, each.name),
      el("td", { class: "number" }, amount(each.flops, "")), el("td", { class: "number" }, amount(each.bytes, "B")),
      el("td", { class: "number share", style: `--share: ${(each.seconds || 0) / most}` },
        each.seconds ? amount(each.seconds * 1e6, "µs") : ""));
  }));
}

function pickKernel(number) {
  // Highlights the nodes of a kernel; choosing it again removes the highlight.
  state.kernel = state.kernel === number ? null : number;
  for (const each of byId("kernels").querySelectorAll("tr.kernel"))
    each.setAttribute("aria-selected", +each.dataset.kernel === state.kernel && state.kernel !== null);
  byId("facts").querySelector(".memory")?.replaceWith(memoryCurve(theStep().memory));
  byId("kernels").querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  drawGraph();
}

function memoryCurve(values) {
  const most = Math.max(...values, 1), width = 360, height = 110, top = 16, bottom = height - 16;
  const x = (n) => (n / values.length) * width, y = (value) => bottom - (value / most) * (bottom - top);
  const steps = values.map((value, n) => `L${x(n)} ${y(value)}L${x(n + 1)} ${y(value)}`).join("");
  const drawing = el("svg", { class: "memory", viewBox: `0 0 ${width} ${height}` },
    el("path", { class: "area", d: `M0 ${bottom}${steps}L${width} ${bottom}Z` }),
    el("text", { x: 0, y: 11 }, `${amount(most, "B")} at the most`),
    el("text", { x: 0, y: height - 3 }, "kernel 1"),
    el("text", { x: width, y: height - 3, "text-anchor": "end" }, String(values.length)));
  if (state.kernel !== null && state.kernel < values.length)
    drawing.append(el("rect", { class: "now", x: x(state.kernel), y: top, width: Math.max(width / values.length, 2),
      height: bottom - top }));
  drawing.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    pickKernel(Math.min(Math.floor((event.clientX - box.left) / box.width * values.length), values.length - 1));
  });
  return drawing;
}

function showStep(number) {
  const step = data.steps[number];
  Object.assign(state, { step: number, stage: 0, chosen: null, kernel: null, open: new Set() });
  if (step.stages[0].nodes.length <= MAX_OPEN) openAll(step);
  byId("chosen").replaceChildren();
  showStages(); showFacts(); arrangeGraph(); fit();
}

function find(text) {
  // Moves to the next node of the stage whose name contains the text.
  const wanted = text.toLowerCase(), list = names(theStep());
  const hits = theStage().nodes.map((each) => each[0]).filter((n) => list[n].toLowerCase().includes(wanted));
  if (!text || !hits.length) { byId("found").textContent = text ? "none" : ""; return; }
  const at = (hits.indexOf(state.chosen) + 1) % hits.length;
  byId("found").textContent = `${at + 1} of ${hits.length}`;
  reveal(hits[at], state.stage);
  showNode(hits[at]);
}

// Events

const graph = byId("graph");
let dragged = 0;  // pixels since the button went down: the end of a drag is not a click
graph.addEventListener("wheel", (event) => {
  event.preventDefault();
  const { left, top } = frame();
  zoom(Math.exp(-event.deltaY / 400), event.clientX - left, event.clientY - top);
}, { passive: false });
graph.addEventListener("pointerdown", () => { dragged = 0; });
graph.addEventListener("pointermove", (event) => {
  if (event.buttons !== 1) { graph.classList.remove("dragged"); return; }
  dragged += Math.abs(event.movementX) + Math.abs(event.movementY);
  graph.classList.toggle("dragged", dragged > 4);
  view.x -= event.movementX / view.scale;
  view.y -= event.movementY / view.scale;
  moved();
});
graph.addEventListener("click", (event) => {
  graph.classList.remove("dragged");
  if (dragged > 4) return;
  const { left, top } = frame();
  const x = view.x + (event.clientX - left) / view.scale, y = view.y + (event.clientY - top) / view.scale;
  const item = itemAt(scene.items, x, y);
  if (item?.kind === "node") pick(item.members[0]);
  else if (item) toggle(item.key);
});
const centred = (factor) => () => zoom(factor, frame().width / 2, frame().height / 2);
byId("closer").addEventListener("click", centred(1.4));
byId("farther").addEventListener("click", centred(1 / 1.4));
byId("whole").addEventListener("click", fit);
byId("step").addEventListener("change", (event) => showStep(+event.target.value));
byId("colour").addEventListener("change", (event) => { state.colour = event.target.value; drawGraph(); });
byId("expand").addEventListener("click", () => { openAll(theStep()); arrangeGraph(); fit(); });
byId("collapse").addEventListener("click", () => { state.open.clear(); arrangeGraph(); fit(); });
byId("search").addEventListener("keydown", (event) => { if (event.key === "Enter") find(event.target.value); });
addEventListener("resize", () => drawGraph());

byId("title").textContent = document.title = data.title;
byId("step").append(...data.steps.map((step, n) => el("option", { value: n }, step.title)));
const largest = data.steps.reduce((best, step, n) =>
  step.nodes.length > data.steps[best].nodes.length ? n : best, 0);
byId("step").value = largest;
showStep(largest);
