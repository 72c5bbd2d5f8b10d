// As much of a browser's document as the explain page needs, to run its script without one.
"use strict";
const fs = require("fs");

class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, children: [], listeners: {}, value: "" });
    this.classList = { add: (name) => { this.attributes.class = `${this.attributes.class || ""} ${name}`; } };
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  append(...children) {
    for (const child of children) if (child instanceof Element) child.parent = this;
    this.children.push(...children);
  }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  getBoundingClientRect() { return { left: 0, top: 0, width: 800, height: 600 }; }
  getBBox() { return { x: 0, y: 0, width: 400, height: 300 }; }
  remove() { this.parent.children = this.parent.children.filter((each) => each !== this); }
  get textContent() { return this.children.map((each) => each.textContent ?? String(each)).join(""); }
  set textContent(text) { this.children = [text]; }
  all(test) {
    const inner = this.children.filter((each) => each instanceof Element).flatMap((each) => each.all(test));
    return test(this) ? [this, ...inner] : inner;
  }
}

const page = fs.readFileSync(process.argv[2], "utf8");
const root = new Element("html"), known = {};
for (const [, id] of page.matchAll(/ id="([a-z]+)"/g)) root.append(known[id] = new Element(id));
known.data.textContent = page.match(/<script type="application\/json" id="data">([^]*?)<\/script>/)[1];
global.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  getElementById: (id) => known[id] || root.all((each) => each.attributes.id === id)[0] || null,
};
new Function(page.match(/<script>([^]*?)<\/script>/)[1])();

const boxes = () => known.view.all((each) => /\bnode\b/.test(each.attributes.class || ""));
const click = (element) => element.listeners.click({});
const keys = () => boxes().map((each) => each.attributes["data-key"]).sort();
const edges = () => known.view.all((each) => each.tag === "path").length;
const result = { stages: [], facts: known.facts.textContent, title: known.title.textContent };
const count = known.stages.all((each) => each.tag === "button").length;
for (let number = 0; number < count; number++) {
  click(known.stages.all((each) => each.tag === "button")[number]);
  known.expand.listeners.click({});
  const open = keys(), lines = edges();
  known.collapse.listeners.click({});
  result.stages.push({ open, edges: lines, closed: keys() });
}
click(boxes().find((each) => /group/.test(each.attributes.class)));
result.reopened = keys();
known.expand.listeners.click({});
for (const colour of ["device", "kernel", "time"]) {
  known.colour.listeners.change({ target: { value: colour } });
  result[colour] = boxes().map((each) => each.children[0].attributes.fill);
}
click(boxes().find((each) => !/group/.test(each.attributes.class)));
result.chosen = known.chosen.textContent;
const places = boxes().map((each) => each.attributes.transform.match(/-?[\d.]+/g).map(Number));
result.overlaps = places.filter(([x, y], n) => places.some(([a, b], m) => m < n && a === x && b === y)).length;
const before = known.graph.attributes.viewBox.split(" ").map(Number);
known.graph.listeners.wheel({ preventDefault() {}, deltaY: -400, clientX: 400, clientY: 300 });
result.zoom = known.graph.attributes.viewBox.split(" ").map(Number)[2] / before[2];
console.log(JSON.stringify(result));
