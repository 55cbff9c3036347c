// Main: puts the views together once the block is unpacked.
function markCritical() {
  const most = 2 * Math.max(data.op_name.length, data.move_name.length) + 2;
  data.is_critical = new Uint8Array(most);
  for (const code of data.critical) if (code >= 0) data.is_critical[code] = 1;
}

function summarize() {
  if (facts.all_ops) return;
  const note = document.getElementById("summary");
  note.hidden = false;
  const shown = data.op_name.length.toLocaleString("en");
  const all = facts.num_ops.toLocaleString("en");
  const moves = `${data.move_name.length.toLocaleString("en")} of ${facts.num_transfers.toLocaleString("en")}`;
  note.textContent =
    `A summary: each row shows how busy the device is over time; of ${all} ops only the ${shown} longest, ` +
    `those of the critical path and what they waited for are drawn one by one, and ${moves} transfers.`;
}

function makeTimeline() {
  makeRows();
  const host = document.getElementById("timeline");
  host.style.height = `${Math.min(timeline.height + AXIS + 4, Math.max(window.innerHeight * 0.7, 260))}px`;
  const scroller = host.querySelector(".scroller");
  host.querySelector(".spacer").style.height = `${timeline.height + AXIS}px`;
  const draw = perFrame(drawTimeline);
  view.watchers.push(draw);
  selection.watchers.push((code, show) => {
    const made = code >= 0 && timeline.rowOf.get(code);
    if (show && made && (toY(made) < AXIS || toY(made) + made.size > scroller.clientHeight)) {
      scroller.scrollTop = made.top - scroller.clientHeight / 2;
    }
    draw();
  });
  selection.watchers.push(showDetails);
  scroller.addEventListener("scroll", draw);
  window.addEventListener("resize", draw);
  document.addEventListener("themechange", draw);
  for (const name of ["show-critical", "show-links"]) document.getElementById(name).addEventListener("change", draw);
  watchPointer(scroller);
  watchKeys(scroller);
  drawTimeline();
}

function watchTools() {
  const zooms = { in: () => zoomAround(0.6), out: () => zoomAround(1 / 0.6), all: () => showRange(0, facts.makespan_ns) };
  document.querySelectorAll("[data-zoom]").forEach((button) =>
    button.addEventListener("click", () => zooms[button.dataset.zoom]())
  );
  document.getElementById("follow").addEventListener("click", nextCritical);
  const find = document.getElementById("find");
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && find.value) find.classList.toggle("missing", !findOp(find.value));
  });
}

async function main() {
  data = await unpack();
  markCritical();
  summarize();
  makeTimeline();
  makeMemory();
  makeGraph();
  watchTools();
  document.body.dataset.ready = Math.round(performance.now());
}

main().catch((error) => {
  const words = `This page could not be drawn: ${error}. The tables above are complete.`;
  document.querySelector("main").prepend(element("div", { class: "alert", role: "alert" }, words));
  throw error;
});

// For the console: what is on the page and what is in view.
window.baechi = { facts, view, selection, timeline, arrays: () => data };
