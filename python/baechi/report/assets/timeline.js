// Timeline: a row per device and per channel on a canvas; only what is in view is drawn.
const GUTTER = 118;
const AXIS = 24;
const DEVICE_ROW = 30;
const CHANNEL_ROW = 18;
const timeline = { rows: [], height: 0, top: 0, drawn: 0 };

function makeRows() {
  const num = facts.devices.length;
  const ops = facts.devices.map(() => []);
  data.op_device.forEach((device, op) => ops[device].push(2 * op));
  const held = facts.channels.map(() => []);
  const free = facts.devices.map(() => []);
  for (let move = 0; move < data.move_name.length; move++) {
    const [send, recv] = [data.move_send[move], data.move_recv[move]];
    if (send >= 0) held[send].push(2 * move + 1);
    if (recv >= 0 && recv !== send) held[recv].push(2 * move + 1);
    if (send < 0 && recv < 0) free[data.move_destination[move]].push(2 * move + 1);
  }
  const channelRow = (channel) => ({
    kind: "channel", label: facts.channels[channel].name, device: facts.channels[channel].device,
    channel, codes: held[channel], size: CHANNEL_ROW,
  });
  for (let device = 0; device < num; device++) {
    const label = deviceName(device);
    timeline.rows.push({ kind: "device", label, device, codes: ops[device], size: DEVICE_ROW });
    facts.channels.forEach((known, channel) => {
      if (known.device === device && held[channel].length) timeline.rows.push(channelRow(channel));
    });
    if (free[device].length) {
      timeline.rows.push({
        kind: "channel", label: `to ${label}`, device, codes: free[device], size: CHANNEL_ROW,
        overlaps: true,
      });
    }
  }
  facts.channels.forEach((known, channel) => {
    if (known.device < 0 && held[channel].length) timeline.rows.push(channelRow(channel));
  });
  let top = 0;
  timeline.rowOf = new Map();
  for (const made of timeline.rows) {
    made.top = top;
    top += made.size + (made.kind === "device" ? 4 : 2);
    made.codes = Int32Array.from(made.codes).sort((a, b) => {
      const [one, two] = [timesOf(a), timesOf(b)];
      return one[0] - two[0] || one[1] - two[1];
    });
    made.longest = made.codes.reduce((most, code) => Math.max(most, timesOf(code)[1] - timesOf(code)[0]), 0);
    for (const code of made.codes) if (!timeline.rowOf.has(code)) timeline.rowOf.set(code, made);
  }
  timeline.height = top + 8;
}

// Rows where a transfer begins (its sender's channel) and where it ends (its receiver's).
function rowsOfMove(move) {
  const at = (channel) => timeline.rows.find((made) => made.channel === channel);
  const [send, recv] = [data.move_send[move], data.move_recv[move]];
  const any = timeline.rowOf.get(2 * move + 1);
  return [send >= 0 ? at(send) : any, recv >= 0 ? at(recv) : any];
}

function firstInView(made, from) {
  let [low, high] = [0, made.codes.length];
  const start = from - made.longest;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (timesOf(made.codes[middle])[0] < start) low = middle + 1;
    else high = middle;
  }
  return low;
}

const canvasOf = () => document.querySelector("#timeline canvas");
const toX = (ns) => GUTTER + ((ns - view.from) / (view.to - view.from)) * (timeline.width - GUTTER - 8);
const toNs = (x) => view.from + ((x - GUTTER) / (timeline.width - GUTTER - 8)) * (view.to - view.from);
const toY = (made) => AXIS + made.top - timeline.top;

function drawTimeline() {
  const canvas = canvasOf();
  const scroller = document.querySelector("#timeline .scroller");
  const [width, height] = [scroller.clientWidth, scroller.clientHeight];
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  Object.assign(timeline, { width, top: scroller.scrollTop, drawn: 0 });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  Object.assign(timeline, { panel: css("--panel"), faint: css("--faint") });
  pen.fillStyle = timeline.panel;
  pen.fillRect(0, 0, width, height);
  const theme = { text: css("--text"), faint: css("--faint"), line: css("--line"), accent: css("--accent") };
  drawGrid(pen, theme, height);
  const visible = timeline.rows.filter((made) => toY(made) + made.size > AXIS && toY(made) < height);
  for (const made of visible) drawRow(pen, made, theme);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, AXIS, width - GUTTER, height - AXIS);
  pen.clip();
  if (document.getElementById("show-links").checked) drawMoveLinks(pen, theme, visible);
  if (document.getElementById("show-critical").checked) drawCriticalLinks(pen, theme);
  if (selection.code >= 0) drawSelected(pen, theme);
  pen.restore();
  drawAxis(pen, theme, width);
  document.getElementById("range").textContent =
    `${formatNs(view.from)} to ${formatNs(view.to)} of ${formatNs(facts.makespan_ns)}`;
}

function ticks() {
  const step = niceStep(view.to - view.from, Math.max((timeline.width - GUTTER) / 110, 1));
  const found = [];
  for (let ns = Math.ceil(view.from / step) * step; ns <= view.to; ns += step) found.push(ns);
  return [found, step];
}

function drawGrid(pen, theme, height) {
  pen.strokeStyle = theme.line;
  pen.lineWidth = 1;
  for (const ns of ticks()[0]) {
    const x = Math.round(toX(ns)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, AXIS);
    pen.lineTo(x, height);
    pen.stroke();
  }
}

function drawAxis(pen, theme, width) {
  pen.fillStyle = timeline.panel;
  pen.fillRect(0, 0, width, AXIS);
  pen.fillStyle = theme.faint;
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const [found, step] = ticks();
  for (const ns of found) {
    const label = tickNs(ns, step);
    const x = Math.min(toX(ns) + 3, width - pen.measureText(label).width - 2);
    pen.fillText(label, x, AXIS / 2);
  }
}

function fillOf(pen, device) {
  if (device < 0) return timeline.faint;
  if (!isHatched(device)) return deviceColor(device);
  timeline.hatches = timeline.hatches || new Map();
  const key = `${device} ${timeline.panel}`;
  if (!timeline.hatches.has(key)) {
    const tile = element("canvas", { width: 8, height: 8 });
    const brush = tile.getContext("2d");
    brush.fillStyle = deviceColor(device);
    brush.fillRect(0, 0, 8, 8);
    brush.strokeStyle = timeline.panel;
    brush.lineWidth = 2;
    for (const shift of [-4, 4, 12]) {
      brush.beginPath();
      const down = Math.floor(device / facts.device_colors.length) % 2 === 1;
      brush.moveTo(shift - 6, down ? 10 : -2);
      brush.lineTo(shift + 6, down ? -2 : 10);
      brush.stroke();
    }
    timeline.hatches.set(key, pen.createPattern(tile, "repeat"));
  }
  return timeline.hatches.get(key);
}

function drawRow(pen, made, theme) {
  const y = toY(made);
  const inset = made.kind === "device" ? 0 : 3;
  pen.fillStyle = theme.text;
  pen.textBaseline = "middle";
  pen.font = `${made.kind === "device" ? "600 12px" : "11px"} system-ui, sans-serif`;
  if (made.kind === "channel") pen.fillStyle = theme.faint;
  pen.fillText(made.label, 6 + 3 * inset, y + made.size / 2, GUTTER - 14 - 3 * inset);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, Math.max(y, AXIS), timeline.width - GUTTER - 8, made.size);
  pen.clip();
  if (data.density && made.kind === "device") drawDensity(pen, made, y);
  const isCritical = document.getElementById("show-critical").checked;
  let free = -1;
  for (let at = firstInView(made, view.from); at < made.codes.length; at++) {
    const code = made.codes[at];
    const [start, end] = timesOf(code);
    if (start > view.to) break;
    if (end < view.from) continue;
    const [left, right] = [toX(start), toX(end)];
    // In a summary what is narrower than this is part of how busy the device is.
    if (data.density && made.kind === "device" && right - left < 1.5 && code !== selection.code) continue;
    const marked = isCritical && data.is_critical[code];
    if (right < free && !marked && !made.overlaps) continue;
    drawBar(pen, made, code, [left, Math.max(right, left + 1)], y + inset, marked, theme);
    free = Math.max(free, left + 1);
    timeline.drawn++;
  }
  pen.restore();
}

function drawDensity(pen, made, y) {
  const bins = facts.bins;
  const width = facts.makespan_ns / bins;
  pen.fillStyle = fillOf(pen, made.device);
  pen.globalAlpha = 0.6;
  const first = Math.max(Math.floor(view.from / width), 0);
  for (let bin = first; bin < bins && bin * width < view.to; bin++) {
    const share = data.density[made.device * bins + bin] / 255;
    const left = toX(bin * width);
    pen.fillRect(left, y + made.size * (1 - share), toX((bin + 1) * width) - left + 0.3, made.size * share);
  }
  pen.globalAlpha = 1;
}

function drawBar(pen, made, code, [left, right], y, marked, theme) {
  const height = made.size - (made.kind === "device" ? 0 : 6);
  const owner = isMove(code) ? data.move_source[indexOf(code)] : made.device;
  pen.globalAlpha = made.overlaps ? 0.6 : 1;
  pen.fillStyle = fillOf(pen, owner);
  const gap = right - left > 3 ? 0.7 : 0;
  pen.fillRect(left, y, right - left - gap, height);
  pen.globalAlpha = 1;
  if (marked) {
    pen.fillStyle = theme.text;
    pen.fillRect(left, y + height - 5, Math.max(right - left - gap, 1), 5);
  }
  if (made.kind === "device" && right - left > 34) {
    const inner = Math.max(left, GUTTER);
    const shown = Math.min(right, timeline.width - 8) - inner - 8;
    const parts = nameOf(code).split(/[/.]/);
    drawLabel(pen, parts[parts.length - 1], inner + 4, y + height / 2 - (marked ? 2 : 0), shown, owner);
  }
}

function drawLabel(pen, text, x, y, width, device) {
  if (width < 20) return;
  pen.font = "11px system-ui, sans-serif";
  const full = Math.max(Math.floor(width / 5.6), 2);
  const shown = text.length > full ? `${text.slice(0, full - 1)}…` : text;
  const size = Math.min(pen.measureText(shown).width, width);
  if (isHatched(device)) {
    pen.fillStyle = deviceColor(device);
    pen.fillRect(x - 2, y - 8, size + 4, 16);
  }
  pen.fillStyle = inkOn(device);
  pen.fillText(shown, x, y, width);
}

// Black or white, whichever stands out more on the color of a device.
function inkOn(device) {
  const value = parseInt(deviceColor(device).slice(1), 16);
  const linear = (part) => ((part / 255 + 0.055) / 1.055) ** 2.4;
  const light =
    0.2126 * linear(value >> 16) + 0.7152 * linear((value >> 8) & 255) + 0.0722 * linear(value & 255);
  return light > 0.179 ? "#000" : "#fff";
}
