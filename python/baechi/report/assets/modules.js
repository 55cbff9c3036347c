// Modules: the tree of paths, and what one level of it shows: boxes and what flows between them.
const FLAT = 60;
const MOST_BOXES = 72;

function makeTree() {
  const root = newModule("", null);
  const { each_op: eachOp } = facts.outline;
  data.unit_path.forEach((path, unit) => {
    let at = root;
    const parts = path.split("\x1f");
    parts.forEach((part, depth) => {
      const isLeaf = depth === parts.length - 1;
      // An op may have the name of a module: then it stands in that module under its own name.
      let next = at.children.get(part);
      if (!next || (isLeaf && next.unit !== NONE)) {
        next = newModule(part, at);
        at.children.set(at.children.has(part) ? `${part}#${unit}` : part, next);
      }
      if (!isLeaf && next.unit !== NONE) {
        const own = newModule(part, next);
        own.unit = next.unit;
        own.own = true;
        next.unit = NONE;
        next.children.set(part, own);
      }
      at = next;
    });
    if (at.children.size) {
      const own = newModule(parts[parts.length - 1], at);
      own.unit = unit;
      own.own = true;
      at.children.set(`${own.name}#${unit}`, own);
    } else {
      at.unit = unit;
    }
  });
  const shares = eachOp ? null : data.unit_path.map(() => []);
  if (!eachOp) {
    data.share_unit.forEach((unit, at) => shares[unit].push([data.share_device[at], data.share_ops[at]]));
  }
  sumUp(root, shares);
  return root;
}

function newModule(name, parent) {
  return { name, parent, children: new Map(), unit: NONE, ops: 0, forward: 0, busy: 0, rank: 0, shares: new Map(), critical: 0, own: false };
}

function sumUp(module, shares) {
  if (module.unit !== NONE) {
    const unit = module.unit;
    if (shares) {
      module.ops = data.unit_ops[unit];
      module.busy = data.unit_busy[unit];
      module.rank = data.unit_rank[unit];
      module.forward = data.unit_forward[unit];
      for (const [device, ops] of shares[unit]) module.shares.set(device, ops);
    } else {
      module.ops = 1;
      module.busy = data.op_end[unit] - data.op_start[unit];
      module.rank = data.op_order[unit];
      module.forward = data.op_role[unit] === 0 ? module.busy : 0;
      module.shares.set(data.op_device[unit], 1);
      module.critical = data.is_critical[2 * unit];
    }
  }
  // A module stands where its forward ops spend their time; backward ops come much later, and
  // what only holds weights comes early.
  const counted = (one) => one.forward || one.ops * 1e-9;
  let weight = counted(module);
  let weighted = module.rank * weight;
  for (const child of module.children.values()) {
    sumUp(child, shares);
    module.ops += child.ops;
    module.busy += child.busy;
    module.critical += child.critical;
    module.forward += child.forward;
    weight += counted(child);
    weighted += child.rank * counted(child);
    for (const [device, ops] of child.shares) module.shares.set(device, (module.shares.get(device) || 0) + ops);
  }
  module.rank = weight ? weighted / weight : 0;
}

function leavesOf(module, found = []) {
  if (module.unit !== NONE) found.push(module);
  for (const child of module.children.values()) leavesOf(child, found);
  return found;
}

// The boxes of a module: its ops where they are few, else its children, else ranges of these.
function boxesOf(module) {
  const own = module.range || [...module.children.values()];
  const leaves = own.flatMap((child) => leavesOf(child));
  let boxes = leaves.length <= FLAT ? leaves : own;
  boxes = [...boxes].sort((one, two) => one.rank - two.rank);
  if (boxes.length <= MOST_BOXES) return boxes;
  const size = Math.ceil(boxes.length / (MOST_BOXES - 12));
  const ranges = [];
  for (let at = 0; at < boxes.length; at += size) ranges.push(rangeOf(boxes.slice(at, at + size), module));
  return ranges;
}

function rangeOf(members, parent) {
  if (members.length === 1) return members[0];
  // A member may be a range itself.
  const [first, last] = [members[0].name, members[members.length - 1].name];
  const made = newModule(`${first.split(" … ")[0]} … ${last.split(" … ").pop()}`, parent);
  made.range = members;
  for (const child of members) {
    made.ops += child.ops;
    made.busy += child.busy;
    made.critical += child.critical;
    made.rank += child.rank / members.length;
    for (const [device, ops] of child.shares) made.shares.set(device, (made.shares.get(device) || 0) + ops);
  }
  return made;
}

// What flows between boxes: [from, to, bytes, edges], positions in the list of boxes.
function flowsOf(boxes) {
  const boxOf = new Int32Array(data.unit_path.length).fill(NONE);
  boxes.forEach((box, at) => {
    for (const top of box.range || [box]) for (const leaf of leavesOf(top)) boxOf[leaf.unit] = at;
  });
  const [one, two, bytes] = facts.outline.each_op
    ? [data.edge_producer, data.edge_consumer, data.edge_bytes]
    : [data.link_from, data.link_to, data.link_bytes];
  const found = new Map();
  let outside = 0;
  for (let at = 0; at < one.length; at++) {
    const [from, to] = [boxOf[one[at]], boxOf[two[at]]];
    if ((from === NONE) !== (to === NONE)) outside++;
    if (from === NONE || to === NONE || from === to) continue;
    const key = from * boxes.length + to;
    const flow = found.get(key) || [from, to, 0, 0];
    flow[2] += bytes[at];
    flow[3]++;
    found.set(key, flow);
  }
  return [[...found.values()], outside];
}
