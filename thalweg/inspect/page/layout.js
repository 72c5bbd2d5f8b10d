// Layout of a graph: name scopes are nested boxes, each laid out in rows.
//
// Comes in: the nodes of a stage with their inputs, and which scopes are open. Goes out: items with
// positions, and edges between them. An item is a node, a closed scope, or an open scope with children.
"use strict";

const BOX_HEIGHT = 26, HEADER = 24, PADDING = 14, COLUMN_GAP = 16, ROW_GAP = 34;
const MIN_ROW = 900;  // rows narrower than this are not split
const MIN_COLUMN = 1200, COLUMN_SPACE = 60;  // nor are columns shorter than this

function scopesOf(name, scopeNames) {
  // The scopes around a node, outermost first. A node with the name of a scope is inside of it.
  const parts = name.split("/"), found = [];
  for (let n = 1; n < parts.length; n += 1) found.push(parts.slice(0, n).join("/"));
  if (scopeNames.has(name)) found.push(name);
  return found;
}

function scopePaths(stage, names) {
  // The scopes around each node of a stage, by the node's number.
  const all = new Set(), numbers = stage.nodes.map((each) => each[0]);
  for (const number of numbers) {
    const name = names[number];
    for (let at = name.indexOf("/"); at > 0; at = name.indexOf("/", at + 1)) all.add(name.slice(0, at));
  }
  return new Map(numbers.map((number) => [number, scopesOf(names[number], all)]));
}

function buildTree(stage, names, paths, open) {
  const root = { key: "", kind: "open", children: [], members: [], parent: null, depth: 0 };
  const items = new Map([["", root]]), leaves = new Map();

  function item(key, kind, parent) {
    let found = items.get(key);
    if (!found) {
      found = { key, kind, children: [], members: [], parent, depth: parent.depth + 1,
        order: items.size, from: new Set(), to: new Set(), rank: 0 };
      items.set(key, found);
      parent.children.push(found);
    }
    return found;
  }

  for (const [number] of stage.nodes) {
    let parent = root, closed = null;
    for (const scope of paths.get(number)) {
      if (!open.has(scope)) { closed = scope; break; }
      parent = item(scope + "/", "open", parent);
      parent.members.push(number);
    }
    const leaf = closed === null ? item(names[number], "node", parent) : item(closed + "/", "closed", parent);
    leaf.members.push(number);
    leaves.set(number, leaf);
  }
  for (const leaf of new Set(leaves.values()))
    if (leaf.members.length === 1) { leaf.kind = "node"; leaf.key = names[leaf.members[0]]; }
  return { root, leaves };
}

function connect(stage, leaves) {
  // Distinct edges between leaves; the edges that they induce between scopes go into from and to.
  const edges = new Map();
  for (const [number, inputs, controls] of stage.nodes) {
    const to = leaves.get(number);
    for (const [list, control] of [[inputs, false], [controls, true]])
      for (const each of list) {
        const from = leaves.get(each);
        if (!from || from === to) continue;
        const key = `${from.order} ${to.order}`, known = edges.get(key);
        if (known) { known.control &&= control; continue; }
        edges.set(key, { from, to, control });
        lift(from, to);
      }
  }
  return [...edges.values()];
}

function lift(from, to) {
  while (from.depth > to.depth) from = from.parent;
  while (to.depth > from.depth) to = to.parent;
  while (from.parent !== to.parent) { from = from.parent; to = to.parent; }
  from.to.add(to);
  to.from.add(from);
}

function ranked(items) {
  // Rows by the longest path from an input; items with few inputs are directly above their users.
  for (const each of items)
    for (const from of each.from)
      if (from.order < each.order) each.rank = Math.max(each.rank, from.rank + 1);
  for (const each of [...items].reverse()) {
    const later = [...each.to].filter((to) => to.order > each.order).map((to) => to.rank);
    if (later.length && each.from.size <= 1) each.rank = Math.max(each.rank, Math.min(...later) - 1);
  }
  const rows = [];
  for (const each of items) (rows[each.rank] ||= []).push(each);
  return rows.filter((row) => row);
}

function broken(rows, items) {
  // Splits rows that are much wider than the graph is high: no edge connects items of one row.
  const area = items.reduce((sum, each) => sum + (each.width + COLUMN_GAP) * (each.height + ROW_GAP), 0);
  const most = Math.max(MIN_ROW, 2 * Math.sqrt(area));
  return rows.flatMap((row) => {
    const parts = [[]];
    let width = 0;
    for (const each of row) {
      if (width + each.width > most && parts.at(-1).length) { parts.push([]); width = 0; }
      parts.at(-1).push(each);
      width += each.width + COLUMN_GAP;
    }
    return parts;
  });
}

function spread(row, neighbours) {
  // Places each item as close as possible to the mean of its neighbours in rows already placed.
  for (const each of row) {
    const xs = neighbours(each);
    each.aim = xs.length ? xs.reduce((a, b) => a + b, 0) / xs.length : each.middle ?? 0;
  }
  row.sort((a, b) => a.aim - b.aim || a.order - b.order);
  let right = -Infinity;
  for (const each of row) {
    each.middle = Math.max(each.aim, right + COLUMN_GAP + each.width / 2);
    right = each.middle + each.width / 2;
  }
  const shift = row.reduce((sum, each) => sum + each.aim - each.middle, 0) / row.length;
  for (const each of row) each.middle += shift;
}

function columned(rows) {
  // Breaks the rows of a graph that is much higher than wide into columns.
  const high = (row) => Math.max(...row.map((each) => each.height)) + ROW_GAP;
  const ends = (row) => [row[0].middle - row[0].width / 2, row.at(-1).middle + row.at(-1).width / 2];
  const height = rows.reduce((sum, row) => sum + high(row), 0);
  const width = Math.max(...rows.map((row) => ends(row)[1])) - Math.min(...rows.map((row) => ends(row)[0]));
  const count = height < MIN_COLUMN ? 1 : Math.max(1, Math.round(Math.sqrt(height / (width + PADDING))));
  const columns = [{ rows: [], height: 0 }];
  for (const row of rows) {
    if (columns.at(-1).height > height / count) columns.push({ rows: [], height: 0 });
    columns.at(-1).rows.push(row);
    columns.at(-1).height += high(row);
  }
  for (const each of columns) {
    each.left = Math.min(...each.rows.map((row) => ends(row)[0]));
    each.right = Math.max(...each.rows.map((row) => ends(row)[1]));
  }
  return columns;
}

function sweep(rows) {
  // Sweeps down by inputs, up by uses, and down again, which aligns neighbours vertically.
  const placed = (set) => [...set].filter((each) => each.middle !== undefined).map((each) => each.middle);
  for (const row of rows) spread(row, (each) => placed(each.from));
  for (const row of [...rows].reverse()) spread(row, (each) => placed(each.to));
  for (const row of rows) spread(row, (each) => placed(each.from));
}

function arrange(scope, measure) {
  // The positions of children in their scope, and the size of the scope.
  for (const each of scope.children) {
    if (each.kind === "open") arrange(each, measure);
    else { each.width = measure(each) + 20; each.height = BOX_HEIGHT; }
  }
  const rows = broken(ranked(scope.children), scope.children);
  sweep(rows);
  const top = scope.parent ? HEADER + PADDING / 2 : 0;
  let right = 0, bottom = top;
  for (const column of columned(rows)) {
    const x = right ? right + COLUMN_SPACE : 0;
    let y = top;
    for (const row of column.rows) {
      for (const each of row) { each.left = x + each.middle - each.width / 2 - column.left; each.top = y; }
      y += Math.max(...row.map((each) => each.height)) + ROW_GAP;
    }
    right = x + column.right - column.left;
    bottom = Math.max(bottom, y - ROW_GAP);
  }
  scope.width = Math.max(right + 2 * PADDING, scope.parent ? measure(scope) + 30 : 0);
  scope.height = bottom + PADDING;
  for (const each of scope.children) each.left += (scope.width - right) / 2;
}

function position(scope, x, y, into) {
  for (const each of scope.children) {
    each.x = x + each.left;
    each.y = y + each.top;
    into.push(each);
    if (each.kind === "open") position(each, each.x, each.y, into);
  }
}

function layout(stage, names, paths, open, measure) {
  // Everything to draw: items, outer scopes before their children, and edges.
  const { root, leaves } = buildTree(stage, names, paths, open);
  const edges = connect(stage, leaves), items = [];
  if (root.children.length) arrange(root, measure);
  position(root, 0, 0, items);
  return { items, edges, leaves, width: root.width || 1, height: root.height || 1 };
}
