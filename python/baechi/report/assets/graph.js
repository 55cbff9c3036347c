// Graph: one level of the module tree as boxes in layers, colored by device.
const MARGIN = 60;
const BOX = { width: 184, height: 48, gapX: 16, gapY: 34 };
const graph = { root: null, at: null, zoom: 1, marked: NONE };

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Rows: every box below what feeds it; what flows against the launch order is left out of that.
function layered(boxes, flows, most) {
  const layer = new Int32Array(boxes.length);
  const forward = flows.filter(([from, to]) => from < to).sort((one, two) => one[0] - two[0]);
  for (const [from, to] of forward) layer[to] = Math.max(layer[to], layer[from] + 1);
  const rows = [];
  boxes.forEach((_, at) => (rows[layer[at]] = rows[layer[at]] || []).push(at));
  const feeders = boxes.map(() => []);
  for (const [from, to] of forward) feeders[to].push(from);
  const spot = new Float64Array(boxes.length);
  const placed = [];
  for (const row of rows.filter(Boolean)) {
    const wish = (at) =>
      feeders[at].length ? feeders[at].reduce((sum, one) => sum + spot[one], 0) / feeders[at].length : 0.5;
    row.sort((one, two) => wish(one) - wish(two) || one - two);
    row.forEach((at, position) => (spot[at] = (position + 0.5) / row.length));
    for (let start = 0; start < row.length; start += most) placed.push(row.slice(start, start + most));
  }
  return placed;
}

function drawGraph() {
  const host = document.getElementById("graph");
  const boxes = boxesOf(graph.at);
  const [flows, outside] = flowsOf(boxes);
  const most = Math.max(Math.floor((host.clientWidth - 2 * MARGIN) / (BOX.width + BOX.gapX)), 2);
  const rows = layered(boxes, flows, most);
  const across = Math.max(...rows.map((row) => row.length), 1);
  const width = across * (BOX.width + BOX.gapX) + 2 * MARGIN;
  const height = rows.length * (BOX.height + BOX.gapY) + 12;
  const spots = [];
  rows.forEach((row, depth) => {
    const left = (width - row.length * (BOX.width + BOX.gapX) + BOX.gapX) / 2;
    row.forEach((at, position) => (spots[at] = [left + position * (BOX.width + BOX.gapX), 10 + depth * (BOX.height + BOX.gapY)]));
  });
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width: width * graph.zoom, height: height * graph.zoom,
    role: "group", "aria-label": "graph",
  });
  picture.append(hatches());
  const largest = flows.reduce((all, flow) => Math.max(all, flow[2]), 1);
  for (const flow of flows) picture.append(flowLine(flow, spots, boxes, largest));
  boxes.forEach((box, at) => picture.append(boxOfModule(box, spots[at])));
  host.replaceChildren(picture);
  drawPath();
  const parts = [`${boxes.length} boxes, ${flows.length} arrows`];
  if (outside) parts.push(`${outside} edges lead elsewhere`);
  if (!facts.outline.each_op) parts.push("a summary: single ops are not on this page");
  parts.push("dashed: from later to earlier in the launch order (such as a backward pass)");
  parts.push("a line below a box: on the critical path");
  document.getElementById("graph-note").textContent = `${parts.join("; ")}.`;
}

function hatches() {
  const made = svg(
    "defs", {},
    svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto", markerUnits: "userSpaceOnUse" },
      svg("path", { d: "M0,0 L8,4 L0,8 z", class: "arrow" }))
  );
  facts.devices.forEach((_, device) => {
    if (!isHatched(device)) return;
    const turn = Math.floor(device / facts.device_colors.length) % 2 === 1 ? 45 : -45;
    made.append(
      svg("pattern", { id: `hatch${device}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` },
        svg("rect", { width: 6, height: 6, fill: deviceColor(device) }),
        svg("rect", { width: 2, height: 6, class: "stripe" }))
    );
  });
  return made;
}

function flowLine([from, to, bytes, edges], spots, boxes, largest) {
  const [one, two] = [spots[from], spots[to]];
  const middle = BOX.width / 2;
  const [x1, y1, x2, y2] = [one[0] + middle, one[1] + BOX.height + 3, two[0] + middle, two[1] - 2];
  let path;
  if (two[1] > one[1]) {
    const bend = Math.max((y2 - y1) / 2, 14);
    path = `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
  } else {
    const [fromY, toY] = [one[1] + BOX.height * 0.6, two[1] + BOX.height * 0.6];
    const side = Math.max(x1, x2) + middle + Math.min(18 + (fromY - toY) / 12, 64);
    path = `M${x1 + middle},${fromY} C${side},${fromY} ${side},${toY} ${x2 + middle + 3},${toY}`;
  }
  const words = `${boxes[from].name} to ${boxes[to].name}: ${edges} edges, ${formatBytes(bytes)}`;
  const thick = 1 + 3 * Math.sqrt(bytes / largest);
  const line = svg("path", { d: path, class: from < to ? "flow" : "flow back", "stroke-width": thick, "marker-end": "url(#arrow)" });
  line.append(svg("title", {}, words));
  return line;
}

function boxOfModule(box, [x, y]) {
  const isOp = box.unit !== NONE && facts.outline.each_op;
  const shares = [...box.shares].sort((one, two) => two[1] - one[1]);
  const homes = shares.length === 1 ? deviceName(shares[0][0]) : `${shares.length} devices`;
  const words = isOp ? `${homes}, ${formatNs(box.busy)}` : `${box.ops.toLocaleString("en")} ops, ${formatNs(box.busy)}, ${homes}`;
  const group = svg("g", {
    class: "box", transform: `translate(${x},${y})`, tabindex: 0, role: "button",
    "aria-label": `${relativeName(box)}: ${words}`, "data-name": box.name,
  });
  if (isOp && box.unit === graph.marked) group.classList.add("marked");
  group.append(svg("rect", { width: BOX.width, height: BOX.height, rx: 5, class: "back" }));
  let left = 0;
  for (const [device, ops] of [...shares].sort((one, two) => one[0] - two[0])) {
    const size = (ops / box.ops) * BOX.width;
    const fill = isHatched(device) ? `url(#hatch${device})` : deviceColor(device);
    group.append(svg("rect", { x: left, y: 0, width: size, height: 13, fill }));
    left += size;
  }
  group.append(svg("text", { x: 7, y: 28, class: "name" }, shortened(relativeName(box), 23)));
  group.append(svg("text", { x: 7, y: 42, class: "words" }, shortened(words, 30)));
  if (box.critical) group.append(svg("rect", { y: BOX.height - 2, width: BOX.width, height: 4, class: "critical" }));
  const every = shares.map(([device, ops]) => `${deviceName(device)} ${ops}`).join(", ");
  group.append(svg("title", {}, `${pathOf(box).join("/")}\n${words}\nops: ${every}`));
  const open = () => {
    if (box.unit === NONE) openModule(box);
    else if (isOp) select(2 * box.unit, { show: true });
  };
  group.addEventListener("click", open);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
  return group;
}

// Where the boxes are ops of several modules, their last names alone would often be the same.
function relativeName(box) {
  const from = graph.at.range ? graph.at.parent : graph.at;
  return pathOf(box).slice(pathOf(from).length).join("/") || box.name;
}

function shortened(text, most) {
  if (text.length <= most) return text;
  const head = Math.ceil((most - 1) * 0.6);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}

function pathOf(module) {
  const found = [];
  for (let at = module; at && at.parent; at = at.parent) if (!at.own && (!at.range || at === module)) found.unshift(at.name);
  return found;
}

function drawPath() {
  const chain = [];
  for (let at = graph.at; at; at = at.parent) chain.unshift(at);
  const links = chain.map((module) => {
    const button = element("button", { type: "button", class: "link" }, module.name || "whole graph");
    if (module === graph.at) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => openModule(module));
    return button;
  });
  document.getElementById("path").replaceChildren(...links.flatMap((link, at) => (at ? [" / ", link] : [link])));
}

function openModule(module) {
  let at = module;
  // A module with a single child would show one box.
  while (!at.range && at.children.size === 1 && at.unit === NONE) {
    const only = [...at.children.values()][0];
    if (only.unit !== NONE) break;
    at = only;
  }
  graph.at = at;
  drawGraph();
}

function openAt(op) {
  const leaf = leavesOf(graph.root).find((one) => one.unit === op);
  graph.marked = op;
  let at = leaf.parent;
  while (at.parent && leavesOf(at.parent).length <= FLAT) at = at.parent;
  graph.at = at;
  // Ranges come into being while drawing: go down to the one with the op.
  for (let range; (range = boxesOf(graph.at).find((box) => box.range && box.range.includes(leaf))); ) graph.at = range;
  drawGraph();
  document.getElementById("graph-section").scrollIntoView();
  const box = document.querySelector("#graph .marked");
  if (box) box.focus();
}

function makeGraph() {
  graph.root = makeTree();
  const legend = facts.devices.map((device, at) =>
    element("span", {}, element("i", { class: isHatched(at) ? "swatch again" : "swatch", style: `background-color:${deviceColor(at)}` }), device.name)
  );
  document.getElementById("legend").replaceChildren(...legend);
  openModule(graph.root);
  document.querySelectorAll("[data-scale]").forEach((button) =>
    button.addEventListener("click", () => {
      graph.zoom = Math.min(Math.max(graph.zoom * (button.dataset.scale === "in" ? 1.25 : 0.8), 0.2), 3);
      drawGraph();
    })
  );
  window.addEventListener("resize", perFrame(drawGraph));
}
