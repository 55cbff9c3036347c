"""The report in a real browser: nothing goes wrong, and it shows what the plan says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import baechi
from baechi import Cluster, GraphBuilder, Plan, workloads
from baechi.critical import critical_path
from baechi.report import replay
from baechi.units import format_bytes, format_ns
from browser import Opened, browsers

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<b>\"quotes\" & 'more'</b>",
    "dossier/été/日本語/\u2028\U0001f600",
    "]]><!--",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from browsers()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A plan of some 400 ops on four devices and its page, with a comparison."""
    graph = workloads.transformer_like(layers=2, seed=0)
    cluster = Cluster("4x256MiB", baechi.Link("10us", "12GB/s"))
    compared = baechi.compare(graph, cluster, ["single", "m-topo", "m-etf", "m-sct"])
    path = tmp_path_factory.mktemp("report") / "small.html"
    compared.report(path)
    assert compared.best is not None
    return compared.best, path


def value(page: Page, selector: str) -> float:
    return float(page.get_attribute(selector, "data-value") or "nan")


@pytest.mark.parametrize("num_ops", [20, 20_000, 1_000_000])
def test_pages_of_three_sizes_open_without_an_error_or_a_request(
    browser: Browser, tmp_path: Path, num_ops: int
) -> None:
    graph = workloads.training_blocks(num_ops, seed=0)
    plan = baechi.place(graph, "4x4TiB", "m-topo")
    path = tmp_path / "plan.html"
    plan.report(path)
    assert path.stat().st_size <= 5_000_000
    with Opened(browser, path) as opened:
        page = opened.ready()
        assert value(page, "[data-fact=makespan]") == plan.makespan_ns
        assert value(page, "[data-fact=ops]") == num_ops
        assert page.evaluate("baechi.facts.all_ops") == (num_ops <= 50_000)
        assert page.evaluate("baechi.timeline.drawn") > 0
        assert page.locator("#graph .box").count() >= 4
        assert int(page.evaluate("document.body.dataset.ready")) <= 2_000


def test_the_figures_are_those_of_the_plan(browser: Browser, small: tuple[Plan, Path]) -> None:
    plan, path = small
    with Opened(browser, path) as opened:
        page = opened.ready()
        assert page.inner_text("[data-fact=makespan]") == format_ns(plan.makespan_ns)
        assert value(page, "[data-fact=transfers]") == plan.num_transfers
        for device in plan.devices:
            cells = page.locator(f'#devices tr[data-key="{device.name}"] td')
            exact = [cells.nth(at).get_attribute("data-value") for at in range(1, 6)]
            room = device.cap_bytes - device.peak_bytes
            shown = [device.num_ops, device.busy_ns, device.peak_bytes, device.cap_bytes, room]
            assert exact == list(map(str, shown))
            assert cells.nth(3).inner_text() == format_bytes(device.peak_bytes)
            assert cells.nth(7).inner_text() == device.peak_op


def test_the_drawn_curves_reach_the_peaks_of_the_plan(
    browser: Browser, small: tuple[Plan, Path]
) -> None:
    plan, path = small
    highest = """baechi.facts.memory.map(({ categories }, device) => {
        const columns = categories.map((name) => baechi.arrays()[`memory${device}_${name}`]);
        const sum = (_, at) => columns.reduce((sum, one) => sum + one[at], 0);
        return Math.max(...columns[0].map(sum));
    })"""
    with Opened(browser, path) as opened:
        page = opened.ready()
        assert page.evaluate(highest.replace("\n", " ")) == list(plan.peak_bytes.values())
        for at in range(4):
            chart = page.locator(f'.chart[data-device="{at}"]')
            chart.scroll_into_view_if_needed()
            chart.locator("canvas").wait_for()


def test_an_op_says_when_it_ran_and_what_it_waited_for(
    browser: Browser, small: tuple[Plan, Path]
) -> None:
    plan, path = small
    schedule = replay(plan)
    names = plan.op_names
    sent_for = int(schedule.transfers.consumer[-1])
    with Opened(browser, path) as opened:
        page = opened.ready()
        page.fill("#find", names[sent_for])
        page.press("#find", "Enter")
        while page.inner_text("#selected-name") != names[sent_for]:
            page.press("#find", "Enter")
        times = page.locator("#selected-times")
        assert times.get_attribute("data-start") == str(schedule.start_ns[sent_for])
        assert times.get_attribute("data-end") == str(schedule.end_ns[sent_for])
        assert plan.placement[names[sent_for]] in page.inner_text("#details")
        assert "waited" in page.inner_text("#selected-wait")
        assert "transfers (" in page.inner_text("#details")


def test_keys_walk_the_critical_path_and_zoom(browser: Browser, small: tuple[Plan, Path]) -> None:
    plan, path = small
    schedule = replay(plan)
    steps = critical_path(schedule)
    with Opened(browser, path) as opened:
        page = opened.ready()
        assert f"critical path ({len(steps)} steps)" in page.inner_text("#timeline-section")
        page.focus("#timeline .scroller")
        page.keyboard.press("c")
        assert page.inner_text("#selected-name") == plan.op_names[steps[0].op]
        page.keyboard.press("c")
        second = page.inner_text("#selected-name")
        page.keyboard.press("w")
        assert page.inner_text("#selected-name") == plan.op_names[steps[0].op] != second
        page.keyboard.press("0")
        assert page.evaluate("[baechi.view.from, baechi.view.to]") == [0, plan.makespan_ns]
        page.keyboard.press("+")
        assert page.evaluate("baechi.view.to - baechi.view.from") < plan.makespan_ns
        page.keyboard.press("Escape")
        assert page.evaluate("baechi.selection.code") == -1


def test_the_wheel_zooms_and_dragging_moves(browser: Browser, small: tuple[Plan, Path]) -> None:
    _, path = small
    with Opened(browser, path) as opened:
        page = opened.ready()
        page.locator("#timeline").scroll_into_view_if_needed()
        box = page.locator("#timeline .scroller").bounding_box()
        assert box is not None
        middle = (box["x"] + box["width"] / 2, box["y"] + 60)
        page.mouse.move(*middle)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -600)
        page.keyboard.up("Control")
        page.wait_for_function("baechi.view.from > 0")
        before = page.evaluate("[baechi.view.from, baechi.view.to]")
        page.mouse.down()
        page.mouse.move(middle[0] + 80, middle[1], steps=4)
        page.mouse.up()
        after = page.evaluate("[baechi.view.from, baechi.view.to]")
        assert after[0] < before[0]
        assert after[1] - after[0] == pytest.approx(before[1] - before[0])


def test_modules_open_by_click_and_by_key(browser: Browser, small: tuple[Plan, Path]) -> None:
    _, path = small
    with Opened(browser, path) as opened:
        page = opened.ready()
        page.click('#graph .box[data-name="layer0"]')
        assert page.inner_text("#path") == "whole graph / layer0"
        page.locator('#graph .box[data-name="head0"]').focus()
        page.keyboard.press("Enter")
        assert page.inner_text("#path") == "whole graph / layer0 / head0"
        op = page.locator("#graph .box").first
        op.click()
        assert page.inner_text("#selected-name").startswith("layer0/head0/")


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    builder = GraphBuilder()
    for name in HOSTILE:
        builder.op(name, 1000, persistent_bytes=100)
    for one, two in pairwise(HOSTILE):
        builder.connect(one, two, bytes=50)
    device = '<i onclick="alert(2)">'
    cluster = Cluster({device: 1000, "d1": 1000}, baechi.Link("1us", "1GB/s"))
    plan = baechi.place(builder.build(), cluster)
    plan.report(tmp_path / "plan.html")
    with Opened(browser, tmp_path / "plan.html") as opened:
        page = opened.ready()
        assert page.evaluate("baechi.arrays().op_name") == list(HOSTILE)
        assert device in page.inner_text("#devices")
        page.fill("#find", HOSTILE[0])
        page.press("#find", "Enter")
        assert page.inner_text("#selected-name") == HOSTILE[0]
        assert page.locator("img, #devices i[onclick]").count() == 0


def test_what_does_not_fit_comes_first(browser: Browser, tmp_path: Path) -> None:
    builder = GraphBuilder()
    builder.op("a", 10, persistent_bytes=700)
    builder.op("b", 10, persistent_bytes=600)
    graph = builder.build()
    schedule = baechi.simulate(graph, Cluster({"x": 1000, "y": 10}), {"a": "x", "b": "x"})
    schedule.report(tmp_path / "over.html")
    with Opened(browser, tmp_path / "over.html") as opened:
        page = opened.ready()
        first = page.locator("main > *").first
        assert first.get_attribute("role") == "alert"
        assert "x needs 1.3 KiB and has 1000 B: 300 B too much" in first.inner_text()


@pytest.mark.parametrize("width", [400, 900, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_window_of_any_width_shows_the_page_in_the_chosen_theme(
    browser: Browser, small: tuple[Plan, Path], width: int, scheme: str
) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    colors = {"light": "rgb(246, 247, 249)", "dark": "rgb(20, 23, 27)"}
    viewport = {"width": width, "height": 800}
    with Opened(browser, small[1], viewport=viewport, color_scheme=scheme) as opened:
        page = opened.ready()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(background) == colors.pop(scheme)
        page.click("#theme")
        assert page.evaluate(background) == next(iter(colors.values()))


def test_sixty_four_devices_have_a_row_and_a_name_each(browser: Browser, tmp_path: Path) -> None:
    graph = workloads.random_layered(640, 64, seed=0)
    plan = baechi.place(graph, "64x1GiB", "round-robin")
    plan.report(tmp_path / "plan.html")
    with Opened(browser, tmp_path / "plan.html") as opened:
        page = opened.ready()
        rows = "baechi.timeline.rows.filter((row) => row.kind === 'device').map((row) => row.label)"
        assert page.evaluate(rows) == [device.name for device in plan.devices]
        assert page.locator("#devices tbody tr").count() == 64
