// Details: what is selected, when it ran, and what it waited for. A code is 2 i for op i on this
// page and 2 j + 1 for transfer j.
const selection = { code: NONE, watchers: [] };

function select(code, { show = false } = {}) {
  if (code < 0) code = NONE;
  selection.code = code;
  if (show && code >= 0) {
    const [start, end] = timesOf(code);
    let width = view.to - view.from;
    const isSized = end - start < width * 0.8 && end - start > width * 0.01;
    if (!isSized) width = Math.max((end - start) * 12, 50);
    if (!isSized || start < view.from || end > view.to) {
      showRange((start + end) / 2 - width / 2, (start + end) / 2 + width / 2);
    }
  }
  for (const watcher of selection.watchers) watcher(code, show);
}

let data = null;
const isMove = (code) => code % 2 === 1;
const indexOf = (code) => code >> 1;
const timesOf = (code) =>
  isMove(code)
    ? [data.move_start[indexOf(code)], data.move_end[indexOf(code)]]
    : [data.op_start[indexOf(code)], data.op_end[indexOf(code)]];
const nameOf = (code) => (isMove(code) ? data.move_name : data.op_name)[indexOf(code)];
const causeOf = (code) => (isMove(code) ? data.move_cause : data.op_cause)[indexOf(code)];
const reasonOf = (code) => (isMove(code) ? data.move_reason : data.op_reason)[indexOf(code)];
const deviceName = (device) => facts.devices[device].name;

function placeOf(code) {
  const at = indexOf(code);
  if (!isMove(code)) return deviceName(data.op_device[at]);
  return `${deviceName(data.move_source[at])} to ${deviceName(data.move_destination[at])}`;
}

function waitText(code) {
  const reason = reasonOf(code);
  if (reason === 0) return "waited for nothing: it starts with the step";
  const cause = causeOf(code);
  if (cause === NOT_SHOWN) return `waited for ${REASONS[reason]} (not on this page)`;
  if (cause === NONE) return `waited for ${REASONS[reason]}`;
  const what = isMove(cause) ? `transfer of ${nameOf(cause)} ${placeOf(cause)}` : nameOf(cause);
  if (reason === 1) return isMove(cause) ? `waited for the ${what}` : `waited for its input ${what}`;
  if (reason === 2) return `waited for memory that the end of ${what} freed`;
  if (reason === 3) {
    const busy = isMove(code) ? "its channel" : placeOf(code);
    return `waited until ${busy} was free of ${what}`;
  }
  return `was decided later than ${what} ended`;
}

function linkTo(code, words) {
  const button = element("button", { type: "button", class: "link" }, words || nameOf(code));
  button.addEventListener("click", () => select(code, { show: true }));
  return button;
}

function row(term, ...content) {
  return element("div", {}, element("dt", {}, term), element("dd", {}, ...content));
}

const MOST_LISTED = 12;

function listed(found) {
  const items = found
    .slice(0, MOST_LISTED)
    .map(([code, words]) => element("li", {}, linkTo(code), ` ${words}`));
  if (found.length > MOST_LISTED) {
    items.push(element("li", {}, `and ${found.length - MOST_LISTED} more`));
  }
  return element("ul", {}, ...items);
}

function opRows(at) {
  const inputs = [];
  const outputs = [];
  for (let edge = 0; edge < data.edge_consumer.length; edge++) {
    const words = data.edge_bytes[edge] ? formatBytes(data.edge_bytes[edge]) : "no bytes";
    if (data.edge_consumer[edge] === at) inputs.push([2 * data.edge_producer[edge], words]);
    if (data.edge_producer[edge] === at) outputs.push([2 * data.edge_consumer[edge], words]);
  }
  const sent = [];
  for (let move = 0; move < data.move_name.length; move++) {
    const words = `${placeOf(2 * move + 1)}, ${formatNs(data.move_end[move] - data.move_start[move])}`;
    if (data.move_producer[move] === 2 * at || data.move_consumer[move] === 2 * at) {
      sent.push([2 * move + 1, words]);
    }
  }
  const rows = [];
  if (inputs.length) rows.push(row(`inputs (${inputs.length})`, listed(inputs)));
  if (outputs.length) rows.push(row(`feeds (${outputs.length})`, listed(outputs)));
  if (sent.length) rows.push(row(`transfers (${sent.length})`, listed(sent)));
  return rows;
}

function moveRows(at) {
  const rows = [row("size", data.move_bytes[at] ? formatBytes(data.move_bytes[at]) : "not given")];
  for (const [term, code] of [["made by", data.move_producer[at]], ["sent for", data.move_consumer[at]]]) {
    rows.push(row(term, code >= 0 ? linkTo(code) : "an op that is not on this page"));
  }
  return rows;
}

function showDetails(code) {
  const panel = document.getElementById("details");
  if (code === NONE) {
    panel.replaceChildren(element("p", { class: "hint" }, "Nothing is selected."));
    return;
  }
  const at = indexOf(code);
  const [start, end] = timesOf(code);
  const kind = isMove(code) ? "transfer" : "op";
  const title = element("h3", {}, `${kind} `, element("span", { id: "selected-name" }, nameOf(code)));
  const cause = causeOf(code);
  const wait = [waitText(code)];
  if (cause >= 0) wait.push(" ", linkTo(cause, "go there"));
  const times = `${formatNs(start)} to ${formatNs(end)}, ${formatNs(end - start)}`;
  const rows = [
    row(isMove(code) ? "from" : "device", placeOf(code)),
    row("time", element("span", { id: "selected-times", "data-start": start, "data-end": end }, times)),
    row("wait", element("span", { id: "selected-wait" }, ...wait)),
    ...(isMove(code) ? moveRows(at) : opRows(at)),
  ];
  if (data.is_critical[code]) rows.push(row("critical", "on the critical path"));
  const tools = element("p");
  if (!isMove(code) && facts.outline.each_op) {
    const button = element("button", { type: "button" }, "show in the graph");
    button.addEventListener("click", () => openAt(at));
    tools.append(button);
  }
  panel.replaceChildren(title, element("dl", {}, ...rows), tools);
}

// The next step of the critical path after the selected one, or its first.
function nextCritical() {
  const path = data.critical;
  let at = path.indexOf(selection.code) + 1;
  for (let tries = 0; tries < path.length; tries++, at++) {
    const code = path[at % path.length];
    if (code >= 0) return select(code, { show: true });
  }
}

function findOp(text) {
  const wanted = text.toLowerCase();
  const names = data.op_name;
  const before = selection.code >= 0 && !isMove(selection.code) ? indexOf(selection.code) : -1;
  for (let step = 1; step <= names.length; step++) {
    const at = (before + step) % names.length;
    if (names[at].toLowerCase().includes(wanted)) {
      select(2 * at, { show: true });
      return true;
    }
  }
  return false;
}
