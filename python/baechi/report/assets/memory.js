// Memory: a chart per device, stacked by what is held, made when it comes into view.
const charts = new Map();
const CHART_HEIGHT = 190;

// Columns for uPlot: times, sums up to each category, the greatest first, and the limit over all.
function columnsOf(device) {
  const { categories } = facts.memory[device];
  const times = data[`memory${device}_time`];
  const ends = new Float64Array(times.length + 1);
  ends.set(times);
  ends[times.length] = Math.max(facts.makespan_ns, times.length ? times[times.length - 1] : 0);
  const held = [];
  const sums = [];
  let below = new Float64Array(ends.length);
  for (const name of categories) {
    const own = data[`memory${device}_${name}`];
    const column = Float64Array.from(ends, (_, at) => own[Math.min(at, own.length - 1)]);
    const sum = column.map((bytes, at) => bytes + below[at]);
    held.push(column);
    sums.push(sum);
    below = sum;
  }
  const limit = new Float64Array(ends.length).fill(facts.devices[device].cap_bytes);
  return { held, columns: [ends, ...sums.reverse(), limit], names: [...categories].reverse() };
}

function makeChart(device, host) {
  const { held, columns, names } = columnsOf(device);
  const cap = facts.devices[device].cap_bytes;
  const top = names.length ? columns[1].reduce((most, bytes) => Math.max(most, bytes), 0) : 0;
  const stepped = uPlot.paths.stepped({ align: 1 });
  const atMost = () => (document.getElementById("to-limit").checked ? Math.max(cap, top) : top) * 1.06 || 1;
  const series = [
    { label: "time", value: (_, ns) => (ns === null ? "" : formatNs(ns)) },
    ...names.map((name, at) => ({
      label: name, stroke: facts.category_colors[name], fill: facts.category_colors[name], width: 1,
      paths: stepped, points: { show: false },
      value: (_, sum, __, moment) =>
        moment === null || sum === null ? "" : formatBytes(held[names.length - 1 - at][moment]),
    })),
    {
      label: "limit", stroke: () => css("--text"), dash: [6, 4], width: 1.5, points: { show: false },
      value: () => formatBytes(cap),
    },
  ];
  const axis = { stroke: () => css("--faint"), grid: { stroke: () => css("--line"), width: 1 } };
  const options = {
    width: Math.max(host.clientWidth, 200), height: CHART_HEIGHT, series,
    legend: { live: true },
    cursor: { sync: { key: "step", setSeries: false }, drag: { x: true, y: false, setScale: false } },
    scales: { x: { time: false, range: () => [view.from, view.to] }, y: { range: () => [0, atMost()] } },
    axes: [
      { ...axis, values: (_, at) => at.map((ns) => tickNs(ns, at.length > 1 ? at[1] - at[0] : 1)) },
      { ...axis, size: GUTTER - 40, splits: () => byteTicks(atMost()), values: (_, at) => at.map(formatBytes) },
    ],
    hooks: {
      setSelect: [
        (chart) => {
          const { left, width } = chart.select;
          if (width < 3) return;
          const [from, to] = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          showRange(from, to);
        },
      ],
    },
  };
  const chart = new uPlot(options, columns, host);
  chart.root.querySelectorAll(".u-series").forEach((row, at) => {
    if (at > 0 && at <= names.length) row.title = facts.category_labels[names[at - 1]];
  });
  charts.set(device, chart);
}

function byteTicks(most) {
  let step = 2 ** Math.floor(Math.log2(Math.max(most / 4, 1)));
  if (most / step > 6) step *= 2;
  const found = [];
  for (let bytes = 0; bytes <= most; bytes += step) found.push(bytes);
  return found;
}

function makeMemory() {
  const root = document.getElementById("memory");
  // Where all devices are nearly empty, curves up to the limit would be flat.
  const isTight = facts.devices.some((device) => device.peak_bytes * 5 >= device.cap_bytes);
  document.getElementById("to-limit").checked = isTight;
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watcher.unobserve(entry.target);
        makeChart(Number(entry.target.dataset.device), entry.target);
      }
    },
    { rootMargin: "300px" }
  );
  facts.devices.forEach((device, at) => {
    const peak = formatBytes(device.peak_bytes);
    const over = device.peak_bytes > device.cap_bytes;
    const words = `peak ${peak} of ${formatBytes(device.cap_bytes)}${over ? ": over the limit" : ""}`;
    const host = element("div", { class: "chart", "data-device": at });
    const title = element("h3", {}, `${device.name} `, element("small", over ? { class: "over" } : {}, words));
    if (facts.memory[at].thinned) title.append(element("small", {}, ", thinned: peaks are exact"));
    root.append(element("div", { class: "device" }, title, host));
    watcher.observe(host);
  });
  const rescale = perFrame(() => {
    for (const chart of charts.values()) chart.setScale("x", { min: view.from, max: view.to });
  });
  view.watchers.push(rescale);
  const redraw = () => charts.forEach((chart) => chart.redraw(true, true));
  document.addEventListener("themechange", redraw);
  document.getElementById("to-limit").addEventListener("change", () =>
    charts.forEach((chart) => chart.setData(chart.data))
  );
  window.addEventListener(
    "resize",
    perFrame(() =>
      charts.forEach((chart, device) => {
        const width = document.querySelector(`.chart[data-device="${device}"]`).clientWidth;
        chart.setSize({ width: Math.max(width, 200), height: CHART_HEIGHT });
      })
    )
  );
}
