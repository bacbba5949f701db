"""The worked example of explanation/store-format.md: made by its commands, written into its blocks.

`python docs/store_sample.py` rewrites the blocks after comments `<!-- sample: NAME -->` when the
format has changed. `tests/test_store_format.py` compares them with what the code makes.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.store.checkpoints import wait_for_checkpoints

PAGE = Path(__file__).parent / "explanation/store-format.md"
PLACE = "/data/format"
"""The store's path on the page."""

SAMPLE = re.compile(
    r"^<!-- sample: (?P<name>[^\n]*) -->\n\n?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LONG = 200
"""In an entry shown by its keys, a text of JSON with more characters becomes `...`."""


def programs(page: str) -> list[str]:
    """The blocks of Python of a page, in order: two that write the store, then those that read."""
    return PYTHON.findall(page)


def samples(page: str) -> dict[str, str]:
    """The blocks that the example fills, by name."""
    return {found["name"]: found["text"] for found in SAMPLE.finditer(page)}


def make(place: Path, page: str) -> dict[str, str]:
    """What the blocks show of the store that the page's commands make at `place`."""
    session: dict[str, Any] = {}
    write, go_on = (each.replace(PLACE, str(place)) for each in programs(page)[:2])
    exec(write, session)
    made = {
        "files": "".join(f"{name}\n" for name in list_files(place)),
        "first entry": by_keys((place / f"_delta_log/{0:020d}.json").read_text()),
        "append": (place / f"_delta_log/{1:020d}.json").read_text(),
        "erasure": (place / f"_delta_log/{5:020d}.json").read_text(),
        "record": f"{next((place / '_tseries/erasures').iterdir()).read_text()}\n",
    }
    head = json.loads(made["append"].splitlines()[-1])["txn"]["version"]
    content = (place / f"_tseries/head/{head:016x}.arrow").read_bytes()
    made |= {"head": dump(content), "head metadata": describe_head(content)}
    (edits,) = (place / "kind=edit").iterdir()
    made["data file"] = describe_data(edits)
    exec(go_on, session)
    wait_for_checkpoints()
    made["last checkpoint"] = f"{(place / '_delta_log/_last_checkpoint').read_text()}\n"
    return {name: text.replace(str(place), PLACE) for name, text in made.items()}


def list_files(place: Path) -> list[str]:
    """The files of a store, by folder in the order of their writing."""
    found = [path for path in place.rglob("*") if path.is_file()]
    # Locks are empty, and touched at any time.
    touched = {path: path.stat().st_mtime_ns * bool(path.stat().st_size) for path in found}
    found.sort(key=lambda path: (str(path.parent), touched[path], path.name))
    return [str(path.relative_to(place)) for path in found]


def by_keys(entry: str) -> str:
    """The actions of a log entry, indented and sorted, without their long texts."""

    def shorten(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shorten(part) for name, part in value.items()}
        return "..." if isinstance(value, str) and len(value) > LONG else value

    lines = [shorten(json.loads(line)) for line in entry.splitlines()]
    return "".join(f"{json.dumps(line, indent=1, sort_keys=True)}\n" for line in lines)


def dump(content: bytes) -> str:
    """Bytes in rows of 16, in hexadecimal digits and as text."""
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  |{shown}|\n")
    return "".join(lines)


def undump(text: str) -> bytes:
    """The bytes that `dump` shows."""
    return b"".join(bytes.fromhex(line[8:55]) for line in text.splitlines())


def describe_head(content: bytes) -> str:
    """The metadata and the rows of a head file."""
    table = pa.ipc.open_stream(content[8:]).read_all()
    texts = table.schema.metadata
    lines = [f"{name.decode()} = {texts[name].decode()!r}" for name in sorted(texts)]
    lines += [f"{column.name}: {column.type} = {table[column.name][0]}" for column in table.schema]
    return "".join(f"{line}\n" for line in lines)


def describe_data(path: Path) -> str:
    """The columns of a data file as Parquet stores them, and our key of its footer."""
    about = pq.read_metadata(path)
    group = about.row_group(0)
    lines = [f"{'column':<20}{'physical':<12}{'logical':<11}{'encodings':<29}compression"]
    for number in range(about.num_columns):
        chunk, column = group.column(number), about.schema.column(number)
        encodings = ", ".join(sorted(chunk.encodings))
        logical = column.logical_type.type.lower()
        lines.append(
            f"{column.name:<20}{column.physical_type:<12}{logical:<11}{encodings:<29}"
            f"{chunk.compression.lower()}"
        )
    lines += [f"{name.decode()} = {value.decode()}" for name, value in about.metadata.items()]
    return "".join(f"{line}\n" for line in lines)


def fill(page: str, made: dict[str, str]) -> str:
    """The page with what was made in its blocks."""

    def put(found: re.Match[str]) -> str:
        name, language = found["name"], found["language"]
        return f"<!-- sample: {name} -->\n```{language}\n{made[name]}```"

    return SAMPLE.sub(put, page)


def main() -> None:
    """Write the blocks of the page again."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        made = make(Path(place) / "format", page)
    PAGE.write_text(fill(page, made), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: {len(made)} blocks\n")


if __name__ == "__main__":
    main()
