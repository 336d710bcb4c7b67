"""A Chromium to look at pages with: Playwright's own, or one that is installed."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> Path | str:
    """Its path, or a text that says what is missing."""
    if find_spec("playwright") is None:
        return "no package playwright: pip install 'multistage[test]'"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        own = Path(play.chromium.executable_path)
    if own.exists():
        return own
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    return Path(installed) if installed else "no browser: apt-get install chromium, or playwright install chromium"
