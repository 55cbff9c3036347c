// Links: lines from what made a transfer to it and on to whom it was sent; the critical path.
const MOST_LINKS = 250;

function curve(pen, from, to) {
  const bend = Math.max((to[0] - from[0]) / 2, 8);
  pen.beginPath();
  pen.moveTo(...from);
  pen.bezierCurveTo(from[0] + bend, from[1], to[0] - bend, to[1], ...to);
  pen.stroke();
}

const endPoint = (code, made) => [toX(timesOf(code)[1]), toY(made) + made.size / 2];
const startPoint = (code, made) => [toX(timesOf(code)[0]), toY(made) + made.size / 2];

function drawEnds(pen, move) {
  const code = 2 * move + 1;
  const [sendRow, recvRow] = rowsOfMove(move);
  const [producer, consumer] = [data.move_producer[move], data.move_consumer[move]];
  if (producer >= 0) curve(pen, endPoint(producer, timeline.rowOf.get(producer)), startPoint(code, sendRow));
  if (sendRow !== recvRow) {
    const middle = (toX(data.move_start[move]) + toX(data.move_end[move])) / 2;
    curve(pen, [middle, startPoint(code, sendRow)[1]], [middle, startPoint(code, recvRow)[1]]);
  }
  if (consumer >= 0) curve(pen, endPoint(code, recvRow), startPoint(consumer, timeline.rowOf.get(consumer)));
}

// All transfers in view, unless they are so many that lines would hide everything.
function drawMoveLinks(pen, theme, visible) {
  const moves = new Set();
  for (const made of visible) {
    if (made.kind !== "channel") continue;
    for (let at = firstInView(made, view.from); at < made.codes.length; at++) {
      const [start, end] = timesOf(made.codes[at]);
      if (start > view.to) break;
      if (end >= view.from) moves.add(indexOf(made.codes[at]));
      if (moves.size > MOST_LINKS) return;
    }
  }
  pen.strokeStyle = theme.faint;
  pen.lineWidth = 1;
  pen.globalAlpha = 0.55;
  for (const move of moves) drawEnds(pen, move);
  pen.globalAlpha = 1;
}

function drawCriticalLinks(pen, theme) {
  const lines = [];
  for (let at = 1; at < data.critical.length; at++) {
    const [one, two] = [data.critical[at - 1], data.critical[at]];
    if (one < 0 || two < 0) continue;
    const [end, start] = [timesOf(one)[1], timesOf(two)[0]];
    if (start < view.from || end > view.to) continue;
    const from = isMove(one) ? rowsOfMove(indexOf(one))[1] : timeline.rowOf.get(one);
    const to = isMove(two) ? rowsOfMove(indexOf(two))[0] : timeline.rowOf.get(two);
    if (from !== to) lines.push([endPoint(one, from), startPoint(two, to)]);
    if (lines.length > MOST_LINKS) return;
  }
  pen.strokeStyle = theme.text;
  pen.lineWidth = 1;
  pen.setLineDash([4, 3]);
  for (const [from, to] of lines) curve(pen, from, to);
  pen.setLineDash([]);
}

function drawSelected(pen, theme) {
  const code = selection.code;
  pen.strokeStyle = theme.accent;
  pen.lineWidth = 2;
  const rows = isMove(code) ? new Set(rowsOfMove(indexOf(code))) : [timeline.rowOf.get(code)];
  for (const made of rows) {
    const [left, right] = timesOf(code).map(toX);
    pen.strokeRect(left - 1.5, toY(made) - 1, Math.max(right - left, 1) + 3, made.size + 2);
  }
  if (isMove(code)) drawEnds(pen, indexOf(code));
  const cause = causeOf(code);
  if (cause >= 0) {
    const from = isMove(cause) ? rowsOfMove(indexOf(cause))[1] : timeline.rowOf.get(cause);
    const to = isMove(code) ? rowsOfMove(indexOf(code))[0] : timeline.rowOf.get(code);
    pen.lineWidth = 2.5;
    curve(pen, endPoint(cause, from), startPoint(code, to));
  }
  for (let move = 0; !isMove(code) && move < data.move_name.length; move++) {
    if (data.move_producer[move] === code || data.move_consumer[move] === code) drawEnds(pen, move);
  }
}
