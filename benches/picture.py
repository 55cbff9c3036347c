"""Draws docs/report.png: the report of `make demo-graphs` down to the timeline, in a browser.

Run by hand after `make demo-graphs`: `.venv/bin/python benches/picture.py`.
"""

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
REPORT_FILE = ROOT / "target" / "demo-graphs.html"
PICTURE_FILE = ROOT / "docs" / "report.png"
WIDTH = 1240
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1600})
        page.goto(REPORT_FILE.as_uri())
        page.wait_for_selector("body[data-ready]")
        timeline = page.locator("#timeline").bounding_box()
        assert timeline is not None
        height = timeline["y"] + timeline["height"] + 10
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height}
        page.screenshot(path=PICTURE_FILE, clip=clip)
        browser.close()
    print(f"{PICTURE_FILE.relative_to(ROOT)}: {PICTURE_FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
