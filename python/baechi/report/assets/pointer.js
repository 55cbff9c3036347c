// Pointer: moving, zooming and selecting in the timeline by mouse, touch and keys.
function codeAt(x, y) {
  if (x < GUTTER || y < AXIS) return NONE;
  const made = timeline.rows.find((one) => y >= toY(one) && y < toY(one) + one.size);
  if (!made) return NONE;
  const slack = toNs(3) - toNs(0);
  const ns = toNs(x);
  let best = NONE;
  let distance = slack;
  for (let at = firstInView(made, ns - slack); at < made.codes.length; at++) {
    const [start, end] = timesOf(made.codes[at]);
    if (start > ns + slack) break;
    const away = Math.max(start - ns, ns - end, 0);
    if (away < distance || (away === 0 && best === NONE)) [best, distance] = [made.codes[at], away];
  }
  return best;
}

function showTip(code, event) {
  const tip = document.getElementById("tip");
  tip.hidden = code < 0;
  if (code < 0) return;
  const [start, end] = timesOf(code);
  tip.replaceChildren(
    element("strong", {}, nameOf(code)),
    element("div", {}, `${placeOf(code)}, ${formatNs(end - start)} from ${formatNs(start)}`),
    element("div", {}, waitText(code))
  );
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 16;
  const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.max(top, 4)}px`;
}

function watchPointer(scroller) {
  const pointers = new Map();
  let moved = 0;
  let spread = 0;
  const at = (event) => {
    const box = scroller.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  scroller.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, event.clientX);
    moved = 0;
    spread = 0;
    scroller.setPointerCapture(event.pointerId);
  });
  scroller.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return showTip(codeAt(...at(event)), event);
    const before = pointers.get(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    moved += Math.abs(event.clientX - before);
    if (pointers.size === 1) {
      const shift = toNs(before) - toNs(event.clientX);
      if (moved > 3) showRange(view.from + shift, view.to + shift);
    } else {
      const [one, two] = [...pointers.values()];
      const now = Math.abs(one - two);
      if (spread && now) zoomAround(spread / now, toNs((one + two) / 2 - scroller.getBoundingClientRect().left));
      spread = now;
    }
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    if (moved <= 3 && event.type === "pointerup") select(codeAt(...at(event)));
  };
  scroller.addEventListener("pointerup", release);
  scroller.addEventListener("pointercancel", release);
  scroller.addEventListener("pointerleave", () => (document.getElementById("tip").hidden = true));
  scroller.addEventListener("dblclick", (event) => zoomAround(0.4, toNs(at(event)[0])));
  scroller.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoomAround(1.0016 ** event.deltaY, toNs(at(event)[0]));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        const shift = toNs(event.deltaX) - toNs(0);
        showRange(view.from + shift, view.to + shift);
      }
    },
    { passive: false }
  );
}

function alongRow(step) {
  const made = timeline.rowOf.get(selection.code) || timeline.rows.find((one) => one.codes.length);
  if (!made) return;
  const at = made.codes.indexOf(selection.code);
  const next = made.codes[Math.min(Math.max(at + step, 0), made.codes.length - 1)];
  select(next, { show: true });
}

function watchKeys(scroller) {
  const shift = (share) => {
    const width = view.to - view.from;
    showRange(view.from + share * width, view.to + share * width);
  };
  const actions = {
    ArrowLeft: () => shift(-0.2), ArrowRight: () => shift(0.2),
    "+": () => zoomAround(0.6), "=": () => zoomAround(0.6), "-": () => zoomAround(1 / 0.6),
    0: () => showRange(0, facts.makespan_ns), Home: () => showRange(0, facts.makespan_ns),
    n: () => alongRow(1), p: () => alongRow(-1), c: nextCritical,
    w: () => selection.code >= 0 && causeOf(selection.code) >= 0 && select(causeOf(selection.code), { show: true }),
    Escape: () => select(NONE),
  };
  scroller.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  });
}
