"""Looks at the built site as a reader does: `make docs-check`.

A headless Chromium, the machine's own, searches the site and opens every page, on a wide and on a
narrow screen. It prints what is wrong and exits with 1; docs/_build/screenshots has pictures of all
pages to look at.
"""

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

BUILT = Path(__file__).parent / "_build"
SITE, PICTURES = BUILT / "html", BUILT / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

SEARCHES = {
    "idleTimeout": "reference/options-kafka.html",
    "TimeSeries": "reference/api-tseries.html",
    "punctuation": "semantics.html",
    "late": "how-to/late-rows.html",
    "downsample": "how-to/chain-through-a-store.html",
    "CheckpointMismatch": "reference/errors.html",
    "StorageFailed": "reference/errors.html",
}
"""A word -> a page that the search box must find for it."""


FIGURES = "explanation/figures.html"
"""The page of full tables: a reader scrolls it to the side even on a wide screen."""

TOO_WIDE = """scrolls => [...document.querySelectorAll("article table")].flatMap(table => {
    const frame = table.closest(".table-wrapper") ?? table.parentElement;
    const over = table.scrollWidth - frame.clientWidth, said = table.innerText.slice(0, 40);
    if (table.getBoundingClientRect().right <= innerWidth + 1 && over <= 1) return [];
    const inside = getComputedStyle(frame).overflowX === "auto";
    const columns = table.rows[0].cells.length;
    if (inside && (scrolls || columns > 5)) return [];
    return [`a table is ${over} pixels wider than its place: ${said}`];
})"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints no log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served() -> Iterator[str]:
    """The address of the site, which is there until the block ends."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def search(page: Page, root: str) -> Iterator[str]:
    """Use the search box; yield what it should have found and did not."""
    for word, expected in SEARCHES.items():
        page.goto(f"{root}/index.html")
        page.fill("input.sidebar-search", word)
        page.press("input.sidebar-search", "Enter")
        page.wait_for_selector("#search-results ul.search li a", timeout=20_000)
        links = page.locator("#search-results ul.search li > a")
        page.wait_for_function(
            "document.querySelector('.search-summary').innerText.includes('found')"
        )
        found = [links.nth(n).get_attribute("href") or "" for n in range(links.count())]
        if not any(expected in link for link in found):
            yield f"searching for '{word}' does not find {expected}: {found[:5]}"
        page.screenshot(path=PICTURES / f"search-{word}.png")
        links.first.click()
        page.wait_for_load_state()
        if "search.html" in page.url:
            yield f"the first result for '{word}' cannot be opened"


def look(browser: Browser, root: str, size: dict[str, int], folder: str) -> Iterator[str]:
    """Open every page at a size and take its picture; yield what is wrong."""
    (PICTURES / folder).mkdir(parents=True)
    page = browser.new_page(viewport=size)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
    page.on("requestfailed", lambda each: faults.append(f"cannot load {each.url}"))
    page.on(
        "request",
        lambda each: (
            each.url.startswith((root, "data:"))
            or faults.append(f"asks a foreign host: {each.url}")
        ),
    )
    page.on(
        "response", lambda each: each.status < 400 or faults.append(f"{each.status} for {each.url}")
    )
    for path in sorted(SITE.rglob("*.html")):
        name = str(path.relative_to(SITE))
        page.goto(f"{root}/{name}")
        page.screenshot(
            path=PICTURES / folder / f"{name[:-5].replace('/', '-')}.png", full_page=True
        )
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > size["width"]:
            faults.append(f"is {width} pixels wide on a screen of {size['width']}")
        faults += page.evaluate(TOO_WIDE, name == FIGURES)
        if not page.locator("link[rel~=icon]").count():
            faults.append("has no icon")
        yield from (f"{name}: {fault}" for fault in faults)
        faults.clear()
    page.close()


def main() -> int:
    """Carry out all checks; returns the exit code."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print("there is no Chromium here; next step: apt-get install chromium", file=sys.stderr)
        return 1
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir(parents=True)
    with served() as root, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        wrong = [
            *search(browser.new_page(viewport=WIDE), root),
            *look(browser, root, WIDE, "wide"),
            *look(browser, root, NARROW, "narrow"),
        ]
        browser.close()
    print("\n".join(wrong) if wrong else f"sound; pictures are in {PICTURES}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
