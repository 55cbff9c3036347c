// Data: unpacks the block, and says times and bytes as the rest of Baechi does.
const facts = JSON.parse(document.getElementById("facts").textContent);
const NONE = -1;
const NOT_SHOWN = -2;
const REASONS = ["nothing", "an input", "memory", "its device or channel", "the decision"];

async function unpack() {
  const text = document.getElementById("block").textContent.trim();
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const types = { f8: Float64Array, i4: Int32Array, u1: Uint8Array };
  const found = {};
  for (const [name, [kind, offset, count]] of Object.entries(facts.index)) {
    found[name] =
      kind === "text"
        ? JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, offset, count)))
        : new types[kind](buffer, offset, count);
  }
  return found;
}

// One digit after the point, none where the amount is whole in that unit.
function inUnits(amount, units) {
  const size = Math.abs(amount);
  for (let at = 0; at < units.length; at++) {
    const [name, unit] = units[at];
    const tenths = Math.floor((20 * size + unit) / (2 * unit));
    if (at + 1 === units.length || tenths * unit < 10 * units[at + 1][1]) {
      const whole = size % unit === 0 ? String(size / unit) : (tenths / 10).toFixed(1);
      return `${amount < 0 ? "-" : ""}${whole} ${name}`;
    }
  }
  return "";
}

const NS = [["ns", 1], ["us", 1e3], ["ms", 1e6], ["s", 1e9]];
const BYTES = [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]];
const formatNs = (ns) => inUnits(Math.round(ns), NS);
const formatBytes = (bytes) => inUnits(Math.round(bytes), BYTES);

// A tick needs as many digits as its distance to the next one.
function tickNs(ns, step) {
  if (ns === 0) return "0";
  const [name, unit] = [...NS].reverse().find(([, size]) => Math.abs(ns) >= size) || NS[0];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(ns / unit).toFixed(Math.min(digits, 9))} ${name}`;
}

function niceStep(range, most) {
  const rough = Math.max(range / most, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const deviceColor = (device) => facts.device_colors[device % facts.device_colors.length];
const isHatched = (device) => device >= facts.device_colors.length;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Calls once per frame at most.
function perFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

// The part of the step that timeline and memory show.
const view = { from: 0, to: Math.max(facts.makespan_ns, 1), watchers: [] };

function showRange(from, to) {
  const whole = Math.max(facts.makespan_ns, 1);
  const width = Math.min(Math.max(to - from, Math.min(10, whole)), whole);
  view.from = Math.min(Math.max(from, 0), whole - width);
  view.to = view.from + width;
  for (const watcher of view.watchers) watcher();
}

function zoomAround(factor, at) {
  const middle = at === undefined ? (view.from + view.to) / 2 : at;
  showRange(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
}
