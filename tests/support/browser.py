"""A real browser without a window, and a page with all that it said and asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NONE = f"no browser on this machine: none of {', '.join(PROGRAMS)} is on the path"


def browsers() -> Iterator[Browser]:
    """One browser, or a skip that says what is missing."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(NONE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox"],  # which root has to do without
        )
        yield browser
        browser.close()


class Opened:
    """A page that is ready, with everything wrong that happened on it."""

    def __init__(self, browser: Browser, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        self.page.on("request", self._asked)
        self.address = path.resolve().as_uri()
        self.page.goto(self.address)

    def _asked(self, request: Any) -> None:
        if request.url != self.address:
            self.wrong.append(f"asked for {request.url}")

    def ready(self) -> Page:
        self.page.wait_for_selector("body[data-ready]", timeout=60_000)
        return self.page

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.context.close()
        if error is None:
            assert self.wrong == []
