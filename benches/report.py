"""How large a report is, how long it takes to write, and how long a browser needs to open it.

Run by hand: `.venv/bin/python benches/report.py [num_ops ...]`. Without a browser on the path the
last column stays empty.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

import baechi
from baechi import workloads

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def main(sizes: list[int]) -> None:
    print("| graph | file | written in | opens in |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for num_ops in sizes:
            graph = workloads.training_blocks(num_ops, seed=0)
            plan = baechi.place(graph, "8x4TiB", "m-etf")
            path = Path(folder) / f"{num_ops}.html"
            started = time.process_time()
            plan.report(path)
            spent = time.process_time() - started
            megabytes = path.stat().st_size / 1e6
            opening = opening_seconds(path)
            print(f"| blocks, {num_ops:,} ops | {megabytes:.2f} MB | {spent:.2f} s | {opening} |")


def opening_seconds(path: Path) -> str:
    """Median of five, from navigation until everything in the first view is drawn."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        return ""
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(5):
            page = browser.new_page()
            page.goto(path.as_uri())
            page.wait_for_selector("body[data-ready]")
            found.append(int(page.evaluate("document.body.dataset.ready")) / 1000)
            page.close()
        browser.close()
    return f"{sorted(found)[2]:.2f} s"


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [20, 20_000, 50_000, 1_000_000])
