"""Print a run of pytest-benchmark as the Markdown tables of README.md: medians, rates, ratios."""

import json
import sys
from pathlib import Path

from baechi.units import format_ns


def tables(document):
    """One table by size for each series that has a baseline, then one for everything else."""
    rows = [
        {**bench["extra_info"], "median_s": bench["stats"]["median"]}
        for bench in document["benchmarks"]
    ]
    series = dict.fromkeys(row["series"] for row in rows if row["series"] is not None)
    parts = [by_size(name, [row for row in rows if row["series"] == name]) for name in series]
    return "\n\n".join([*parts, plain([row for row in rows if row["series"] is None])])


def by_size(series, rows):
    """A line per size, a column per contestant, each with its ratio to the baseline."""
    median_s = {(row["what"], row["num_ops"]): row["median_s"] for row in rows}
    base = next(row["what"] for row in rows if row["is_baseline"])
    others = list(dict.fromkeys(row["what"] for row in rows if not row["is_baseline"]))
    lines = markdown([f"{series}: ops", base, *others], ":")
    for size in sorted({size for _, size in median_s}):
        cells = [f"{size:,}"]
        for what in (base, *others):
            time_s, base_s = median_s.get((what, size)), median_s.get((base, size))
            cell = "" if time_s is None else shown(time_s)
            if time_s is not None and base_s is not None and what != base:
                cell += f", {base_s / time_s:,.0f}x"
            cells.append(cell)
        lines.append(line(cells))
    return "\n".join(lines)


def plain(rows):
    """A line per bench and size."""
    lines = markdown(["what", "ops", "time", "ops/s"], "")
    for row in rows:
        rate = per_second(row["num_ops"] / row["median_s"])
        lines.append(line([row["what"], f"{row['num_ops']:,}", shown(row["median_s"]), rate]))
    return "\n".join(lines)


def markdown(head, first):
    return [line(head), line([f"---{first}", *["---:"] * (len(head) - 1)])]


def line(cells):
    return f"| {' | '.join(cells)} |"


def shown(time_s):
    return format_ns(round(time_s * 1e9))


def per_second(rate):
    for factor, letter in ((1e6, " M"), (1e3, " k")):
        if rate >= factor:
            return f"{rate / factor:.1f}{letter}"
    return f"{rate:.0f}"


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text())))
