"""README.md and the pages of docs/ as tests read them: tables, sections and code blocks.

`integration/docs/test_pages_run.py` runs each block that a reader pastes, page by page and in
order. A comment before a block changes that:

- `<!-- not run: REASON -->`: nothing runs it, and the reason says why.
- `<!-- prints -->` before a block of text: what the blocks since the last of these have printed.

In a block, `print(...)  # prints TEXT` names what is printed; `...` in TEXT stands for anything.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PASTED = ("python", "console", "sql")
"""The languages of blocks that a reader pastes."""

FENCE = re.compile(
    r"^(?:<!-- (?P<comment>[^\n]*) -->\n\n?)?```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    language: str
    text: str
    comment: str

    @property
    def not_run(self) -> str:
        """Why nothing runs it; empty where it is run."""
        return self.comment.removeprefix("not run: ") if self.comment[:8] == "not run:" else ""

    @property
    def is_printed(self) -> bool:
        return self.comment == "prints"


def pages() -> list[str]:
    """The paths of README.md and of all pages of docs/, from the root of the repository."""
    found = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    return ["README.md", *sorted(str(path) for path in found if "_build" not in path.parts)]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "") -> list[Block]:
    """The code blocks of a page in order; with `language`, those of it."""
    found = FENCE.finditer(read(page))
    every = [Block(each["language"], each["text"], each["comment"] or "") for each in found]
    return [block for block in every if language in ("", block.language)]


def check_comments(block: Block, printed: str) -> None:
    """Each comment `# prints TEXT` of a block holds, in the order of the comments."""
    for said in re.findall(r"# prints (.*)$", block.text, re.MULTILINE):
        parts = [re.escape(part.strip()) for part in said.split("...")]
        found = re.search(".*?".join(parts), printed, re.DOTALL)
        assert found, f"'{said}' is not in: {printed}"
        printed = printed[found.end() :]


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    _, found, rest = read(page).partition(f"\n{heading}\n")
    assert found, f"{page} has no heading '{heading}'"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(page: str, marker: str) -> list[list[str]]:
    """The cells of the first table after the comment `marker`, without its head."""
    _, found, rest = read(page).partition(f"<!-- {marker} -->")
    assert found, f"{page} has no comment '{marker}'"
    lines = rest.lstrip().partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in lines[2:]]
