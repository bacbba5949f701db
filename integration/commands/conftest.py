"""A real browser, for the pages that the commands serve."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

FIND_FAULTS = """() => {
  const shown = each => each.getClientRects().length > 0 && !each.closest(".unseen")
    && !each.closest("details:not([open]) > :not(summary)");
  const all = what => [...document.querySelectorAll(what)].filter(shown);
  const tell = each => each.outerHTML.slice(0, 120);
  const faults = [];
  const name = each => each.getAttribute("aria-label") || each.labels?.[0]?.textContent
    || each.querySelector(":scope > title")?.textContent || each.textContent.trim();
  for (const each of all("a, button, input, select, summary, [role=img], [tabindex]"))
    if (!name(each)) faults.push("no name: " + tell(each));
  for (const each of all("[role=region]"))
    if (!each.getAttribute("aria-label")) faults.push("a region without a name: " + tell(each));
  for (const each of all("h1, h2, h3, p, li, th, td, summary, figcaption"))
    if (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display != "inline")
      faults.push("wider than its place: " + tell(each));
  const within = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1
    && one.top >= other.top - 1 && one.bottom <= other.bottom + 1;
  const over = (one, other) => one.left < other.right - 1 && other.left < one.right - 1
    && one.top < other.bottom - 1 && other.top < one.bottom - 1;
  for (const svg of all("svg:not(svg svg)")) {
    const texts = [...svg.querySelectorAll("text")];
    const places = texts.map(each => {
      // Letters fill the middle of their box: what is above and below are ascents of other scripts.
      const {left, right, top, bottom, height} = each.getBoundingClientRect();
      return {left, right, top: top + height / 5, bottom: bottom - height / 5};
    });
    texts.forEach((each, n) => {
      if (!within(places[n], (each.closest("svg")).getBoundingClientRect()))
        faults.push("text that is cut: " + tell(each));
      for (let m = 0; m < n; m++)
        if (over(places[n], places[m])) faults.push("text over text: " + tell(each));
    });
  }
  for (const row of all("tr")) {
    const cells = [...row.children].map(each => {
      const range = document.createRange();
      range.selectNodeContents(each);
      return range.getBoundingClientRect();
    });
    cells.forEach((each, n) => {
      for (let m = 0; m < n; m++)
        if (over(each, cells[m])) faults.push("cell over cell: " + tell(row));
    });
  }
  return faults;
}"""

HAS_VISIBLE_FOCUS = """() => {
  const style = getComputedStyle(document.activeElement);
  return document.activeElement === document.body
    || (style.outlineStyle != "none" && parseFloat(style.outlineWidth) >= 1);
}"""


@pytest.fixture
def check_looks(tmp_path: Path) -> Callable[..., None]:
    """Check a page on a desk and on a phone, in light and in dark, and leave pictures of it.

    Nothing is cut or lies over other things, everything that can be used has a name, and what has
    the focus is seen.
    """

    def check(page, name: str = "page") -> None:
        for size in (WIDE, NARROW):
            for scheme in ("light", "dark"):
                page.set_viewport_size(size)
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(300)
                where = f"{name}-{size['width']}-{scheme}"
                page.screenshot(path=tmp_path / f"{where}.png", full_page=True)
                assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], where
                assert page.evaluate(FIND_FAULTS) == [], where
            for _ in range(5):
                page.keyboard.press("Tab")
                assert page.evaluate(HAS_VISIBLE_FOCUS), page.evaluate(
                    "document.activeElement.outerHTML.slice(0, 200)"
                )
        page.set_viewport_size(WIDE)

    return check
