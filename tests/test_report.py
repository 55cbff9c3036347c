"""The report as a file: what is in it, and what is refused."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import baechi
from baechi import Cluster, Graph, GraphBuilder, InputError, Plan, workloads
from baechi.holdings import curve, holdings
from baechi.report import replay, report_html
from baechi.report.colors import CATEGORY_COLORS, DEVICE_COLORS
from baechi.report.outline import op_paths, units_of
from baechi.report.usage import thinned

CLUSTER = Cluster("2x1GiB", baechi.Link("10us", "12GB/s"))


def chain_plan() -> Plan:
    return baechi.place(workloads.chain(8, seed=1), CLUSTER)


def told(page: str) -> dict[str, object]:
    facts = re.search(r'<script id="facts" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert facts is not None
    found: dict[str, object] = json.loads(facts[1])
    return found


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        chain_plan().report(tmp_path / name)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_a_page_refers_to_nothing_outside_of_it() -> None:
    page = report_html(replay(chain_plan()))
    assert re.findall(r"<(?:link|img|iframe)|<script[^>]* src|@import|url\((?!#)", page) == []
    assert "default-src 'none'" in page


def test_the_license_of_the_chart_library_lies_beside_it() -> None:
    assets = Path(baechi.__file__).parent / "report" / "assets"
    version = re.search(r"uPlot \(v([0-9.]+)\)", (assets / "uplot.iife.min.js").read_text())
    assert version is not None
    assert f"uPlot {version[1]}" in (assets / "NOTICE").read_text()
    assert "Permission is hereby granted" in (assets / "uplot.LICENSE").read_text()


def test_a_plan_from_a_file_needs_its_graph(tmp_path: Path) -> None:
    plan = chain_plan()
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    with pytest.raises(InputError, match="does not hold its graph"):
        loaded.report(tmp_path / "plan.html")
    loaded.report(tmp_path / "plan.html", workloads.chain(8, seed=1))
    assert told((tmp_path / "plan.html").read_text())["makespan_ns"] == plan.makespan_ns


def test_a_plan_of_another_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(baechi.PlanMismatchError):
        chain_plan().report(tmp_path / "plan.html", workloads.chain(8, seed=2))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a Comparison"):
        chain_plan().report(tmp_path / "plan.html", compared="m-etf")  # type: ignore[arg-type]


def test_assumed_links_are_named() -> None:
    plan = baechi.place(workloads.chain(3, seed=1), "2x1GiB")
    page = report_html(replay(plan), plan=plan)
    assert "assumed links: gpu:0 to gpu:1, gpu:1 to gpu:0" in page
    assert "assumed links" not in report_html(replay(chain_plan()), plan=chain_plan())


def test_a_comparison_without_a_plan_says_why(tmp_path: Path) -> None:
    graph = workloads.chain(3, compute_ns=10, tensor_bytes=2000)
    compared = baechi.compare(graph, "2x1KiB", ["single", "m-etf"])
    compared.report(tmp_path / "none.html")
    page = (tmp_path / "none.html").read_text()
    reason = html.escape(f"single: {compared['single'].error}")
    assert page.index("Nothing was placed") < page.index(reason)


def test_an_empty_graph_has_a_page() -> None:
    graph = Graph.from_arrays(num_ops=0)
    assert told(report_html(baechi.simulate(graph, CLUSTER, {})))["num_ops"] == 0


@pytest.mark.parametrize("rules", ["baechi-tf", "baechi-torch"])
def test_other_rules_have_pages_that_say_so(rules: str) -> None:
    plan = baechi.place(workloads.diamond(3, seed=0), "2x1GiB", "m-etf", rules)
    assert f"peaks are those of the {rules} rules" in report_html(replay(plan), plan=plan)


def test_a_name_cannot_leave_its_script_element() -> None:
    builder = GraphBuilder()
    builder.op("</script><script>alert(1)</script>", 5, persistent_bytes=5)
    page = report_html(baechi.simulate(builder.build(), CLUSTER, [1]))
    assert page.count("</script>") == page.count("<script")
    assert "alert(1)</script>" not in page


@given(st.data())
def test_thinning_keeps_every_peak_and_what_is_held_at_last(data: st.DataObject) -> None:
    steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=60)
    drawn = data.draw(steps)
    times = np.cumsum([step for step, _ in drawn])
    total = np.array([held for _, held in drawn])
    kept = thinned(times, total, data.draw(st.integers(2, 30)), int(times[-1]))
    assert total[kept].max() == total.max()
    assert kept[-1] == len(times) - 1
    assert (np.diff(times[kept]) >= 0).all()


def test_a_thinned_curve_has_the_peak_of_the_plan() -> None:
    plan = baechi.place(workloads.training_blocks(9_000, seed=0), "2x64GiB", "m-topo")
    schedule = replay(plan)
    times, by_category = curve(holdings(schedule), 0)
    kept = thinned(times, by_category.sum(axis=0), 500, schedule.makespan_ns)
    assert len(kept) <= 600 < len(times)
    assert by_category[:, kept].sum(axis=0).max() == plan.devices[0].peak_bytes


def test_packed_columns_are_those_of_the_schedule() -> None:
    schedule = replay(chain_plan())
    page = report_html(schedule)
    block = re.search(r'<script id="block" type="text/plain">(.*?)</script>', page)
    assert block is not None
    data = zlib.decompress(base64.b64decode(block[1]))
    index = told(page)["index"]
    assert isinstance(index, dict)
    kind, offset, count = index["op_end"]
    assert kind == "f8"
    assert np.frombuffer(data, "<f8", count, offset).tolist() == schedule.end_ns.tolist()


def test_paths_come_from_module_paths_and_names() -> None:
    def paths(**names: list[str]) -> list[tuple[str, ...]]:
        return op_paths(Graph.from_arrays(**names))

    assert paths(op_names=["a/b/c", "a.d"]) == [("a", "b", "c"), ("a.d",)]
    assert paths(op_names=["a.b", "c"]) == [("a", "b"), ("c",)]
    assert paths(op_names=["x/w", "y"], module_paths=["x", "z"]) == [("x", "w"), ("z", "y")]


def test_many_modules_become_ranges_and_few_stay_whole() -> None:
    flat = [(f"op{at}",) for at in range(10_000)]
    unit, names = units_of(flat, np.arange(10_000, dtype=np.int32))
    assert len(names) <= 3_000
    assert names[0] == ("op0 … op9",)
    assert (np.diff(unit) >= 0).all()
    nested = [("model", f"layer{at % 7}", f"op{at}") for at in range(10_000)]
    unit, names = units_of(nested, np.arange(10_000, dtype=np.int32))
    assert names == [("model", f"layer{at}") for at in range(7)]
    assert unit.tolist() == [at % 7 for at in range(10_000)]


# Control tensors have no bytes, so their color is never drawn.
HELD_COLORS = [color for name, color in CATEGORY_COLORS.items() if name != "control"]
# Linear RGB as a protanope, a deuteranope and a tritanope see it (Machado and others, 2009).
VISIONS = {
    "all cones": np.eye(3),
    "no red cones": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green cones": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue cones": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("colors", [DEVICE_COLORS, HELD_COLORS], ids=["devices", "memory"])
def test_anyone_can_tell_the_colors_apart(vision: str, colors: Sequence[str]) -> None:
    codes = [[int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)] for color in colors]
    linear = ((np.array(codes) + 0.055) / 1.055) ** 2.4
    seen = oklab(np.clip(linear @ np.array(VISIONS[vision]).T, 0, 1))
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=2)
    assert len(colors) >= 8
    assert apart[np.triu_indices(len(colors), 1)].min() > 0.06


def oklab(linear: np.ndarray) -> np.ndarray:
    cones = linear @ np.array(
        [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    ).T  # fmt: skip
    return np.cbrt(cones) @ np.array(
        [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    ).T  # fmt: skip
