"""The counts of the page "How it is tested", read from the tests themselves when the site is built.

Nothing is run: the tests are parsed. A test belongs to a kind by its name, its decorators or what
it uses, so added and removed tests count without further code.
"""

import ast
import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from kept_results import fault_counts, long_runs, sizes

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("tests", "integration")
EXAMPLES: Final = 100
"""Hypothesis' own number of examples, where a test names none."""

READERS: Final = {
    "confluent_kafka": "Confluent's client",
    "deltalake": "delta-rs",
    "duckdb": "DuckDB",
    "fastavro": "fastavro",
    "google": "Google's protobuf",
    "opentelemetry": "OpenTelemetry's SDK",
    "polars": "Polars",
}
"""Foreign libraries that read our files or write ours to read, by the name of the import."""

ENGINES: Final = ("trill", "pravega", "flink", "hazelcast", "kafka_streams")
"""Systems that tests take cases of: their names after `test_` have the case's number."""

SPLITS: Final = "split or _cut or slice or _blocked"
"""Words in the names of tests that cut their input anywhere."""


@dataclass(frozen=True, slots=True)
class Test:
    """A test function: its name, where it is, and its syntax."""

    name: str
    path: Path
    tree: ast.FunctionDef

    @property
    def text(self) -> str:
        """Its source, with its decorators."""
        begin = min(each.lineno for each in (self.tree, *self.tree.decorator_list))
        return "\n".join(lines(self.path)[begin - 1 : self.tree.end_lineno])

    @property
    def is_generated(self) -> bool:
        """True if Hypothesis makes its cases."""
        calls = (each for each in self.tree.decorator_list if isinstance(each, ast.Call))
        return any(isinstance(call.func, ast.Name) and call.func.id == "given" for call in calls)

    @property
    def examples(self) -> int:
        """The cases of one run at full length."""
        found = re.search(
            r"max_examples=(\d+)", " ".join(map(ast.unparse, self.tree.decorator_list))
        )
        return int(found[1]) if found else EXAMPLES


@cache
def modules() -> dict[Path, ast.Module]:
    """The modules of all tests and of what they share."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def lines(path: Path) -> list[str]:
    """The lines of a module."""
    return path.read_text(encoding="utf-8").split("\n")


@cache
def nodes() -> dict[Path, tuple[ast.AST, ...]]:
    """What we need of their syntax: functions, imports and named arguments."""
    kinds = (ast.FunctionDef, ast.Import, ast.ImportFrom, ast.keyword)
    return {
        path: tuple(node for node in ast.walk(module) if isinstance(node, kinds))
        for path, module in modules().items()
    }


@cache
def tests() -> tuple[Test, ...]:
    """All test functions."""
    return tuple(
        Test(node.name, path, node)
        for path, found in nodes().items()
        for node in found
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def named(words: str) -> list[Test]:
    """The tests that pytest takes by `-k WORDS`, for words with ` or ` between them."""
    parts = words.split(" or ")
    # As pytest does, by the names of modules, too.
    names = ((test, f"{test.path.stem} {test.name}") for test in tests())
    return [test for test, name in names if any(part in name for part in parts)]


def generated(found: Iterable[Test]) -> str:
    """The tests of these that take their cases from Hypothesis: how many, and how many cases."""
    mine = [test for test in found if test.is_generated]
    cases = sum(test.examples for test in mine)
    return f"{len(mine):,} tests, {cases:,} cases at full length"


@cache
def oracles() -> tuple[tuple[Path, str], ...]:
    """Definitions of oracles and models: functions, classes and modules with such names."""
    found: list[tuple[Path, str]] = []
    for path, module in modules().items():
        if path.stem == "oracle":
            found += [
                (path, node.name)
                for node in module.body
                if isinstance(node, ast.FunctionDef) and node.name.startswith("run")
            ]
        found += [
            (path, node.name)
            for node in module.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and re.search(r"(?i)oracle|^model$", node.name)
            and not node.name.startswith("test_")
        ]
    return tuple(found)


def repeated(value: ast.expr) -> tuple[int, int] | None:
    """The numbers of a short and of a full run in an expression; None if it has none."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("repetitions", "in_ci"):
            short, full = (int(ast.literal_eval(each)) for each in node.args)
            return short, full
    if isinstance(value, ast.Constant) and isinstance(value.value, int):
        return value.value, value.value
    return None


def constants(prefix: str) -> Iterator[tuple[int, int]]:
    """Short and full numbers of the modules' constants with names that begin so."""
    for module in modules().values():
        for node in module.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and target.id.startswith(prefix):
                numbers = repeated(node.value)  # type: ignore[union-attr]
                if numbers is not None:
                    yield numbers


def arguments(name: str) -> Iterator[tuple[int, int]]:
    """Short and full numbers given as the argument `name` of a call."""
    for path, found in nodes().items():
        if path.stem == "test_harness":
            continue  # It tests the tests' own kills.
        for node in found:
            if isinstance(node, ast.keyword) and node.arg == name:
                numbers = repeated(node.value)
                if numbers is not None:
                    yield numbers


def kills() -> str:
    """The kills of one run, short and full."""
    found = [*constants("KILLS"), *arguments("kills")]
    short, full = (sum(numbers) for numbers in zip(*found, strict=True))
    return f"{short:,} in a short run, {full:,} at full length, in {len(found)} places"


def number(prefix: str) -> str:
    """The one constant with a name that begins so, short and full."""
    ((short, full),) = constants(prefix)
    return f"{full:,}" if short == full else f"{short:,} in a short run, {full:,} at full length"


def longer(variable: str, target: str) -> str:
    """The number that a target of the Makefile sets."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{target}: export {variable} := (\d+)$", makefile, re.M)
    return f"{int(found):,} in `make {target}`"


def readers() -> str:
    """Foreign libraries, and how many modules of tests use each."""
    used: dict[str, int] = {}
    for found in nodes().values():
        imports = {
            name.split(".")[0]
            for node in found
            for name in (
                [each.name for each in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        for name in imports & READERS.keys():
            used[name] = used.get(name, 0) + 1
    ordered = sorted(used.items(), key=lambda item: -item[1])
    return f"{len(used)}: " + ", ".join(f"{READERS[name]} in {n} modules" for name, n in ordered)


def value_of(module: str, name: str) -> Any:
    """The object `name` of a module of tests, which imports nothing of the packages."""
    (path,) = (path for path in modules() if path.stem == module)
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def fuzz_targets() -> list[str]:
    """The targets of the fuzzer: the keys of the tables `TARGETS`."""
    return [
        str(ast.literal_eval(key))
        for path, module in modules().items()
        if path.parent.name == "fuzz"
        for node in module.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TARGETS"
        for key in getattr(node.value, "keys", ())
    ]


def seconds_of_fuzzing() -> float:
    """How long a target runs in CI."""
    (path,) = (path for path in modules() if path.name == "test_fuzz.py")
    (found,) = re.findall(r"^SECONDS = .*in_ci\([\d.]+, ([\d.]+)\)$", "\n".join(lines(path)), re.M)
    return float(found)


def cited() -> str:
    """Tests by the system that their case comes from."""
    counts = {
        name: sum(bool(re.match(rf"test_{name}_\d", test.name)) for test in tests())
        for name in ENGINES
    }
    told = ", ".join(f"{n} of {name.replace('_', ' ').title()}" for name, n in counts.items())
    return f"{sum(counts.values())}: {told}"


def beside_spark() -> str:
    """Cases of Spark's own suites that run by both sources."""
    both = [test for test in tests() if test.path.name.startswith("test_beside_")]
    differ = sum("pytest.mark.difference" in test.text for test in both)
    return f"{len(both)} tests, {differ} of them show a difference"


def mutants() -> str:
    """The results of the last measured run of the mutation tests."""
    text = (ROOT / "tests/mutation/survivors.md").read_text(encoding="utf-8")
    (row,) = re.findall(
        r"^\| all \| \| ([\d,]+) \| [\d,]+ \| ([\d,]+) \| ([\d.]+)% \|$", text, re.M
    )
    (date,) = re.findall(r"Measured on (\S+):", text)
    return f"{row[1]} of {row[0]} killed, {row[2]} %, on {date}"


def simulated() -> str:
    """How long seeds are simulated, what this has found, and the longest run."""
    ((shards, _),), ((short, in_ci),) = constants("SHARDS"), constants("SIMULATION_SECONDS")
    kept, run = (value_of("kept_seeds", name) for name in ("KEPT", "LONG_RUN"))
    planted = sum("@bug" in line for line in lines(ROOT / "tests/simulation/test_planted_bugs.py"))
    ((most, _),) = constants("SEEDS_TO_FIND")
    return (
        f"{shards * short} seconds in a short run, {shards * in_ci} in CI; {planted} planted bugs "
        f"are found, each by at most {most} seeds; {len(kept)} seeds are kept; on {run['date']} "
        f"{run['seeds']:,} seeds with {run['steps']:,} steps, {run['batches']:,} batches and "
        f"{run['faults']:,} faults"
    )


def blocks_run() -> str:
    """The code blocks of the documents that are run."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    fence = re.compile(r"^(?:<!-- ([^\n]*) -->\n\n?)?```(?:python|console|sql)\n", re.M)
    told = [
        comment or ""
        for page in pages
        if "_build" not in page.parts
        for comment in fence.findall(page.read_text(encoding="utf-8"))
    ]
    left = sum(comment.startswith("not run") for comment in told)
    return f"{len(told) - left} blocks; {left} are not run, each for its reason"


def import_rules() -> str:
    """The rules of which folder may import which."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return f"{len(project['tool']['importlinter']['contracts'])} import contracts"


@dataclass(frozen=True, slots=True)
class Kind:
    """A way of testing: what it is, how many there are, and how to repeat it."""

    what: str
    count: Callable[[], str]
    command: str


def of_name(words: str, folders: str = "tests") -> str:
    """The command for the tests with such names."""
    return f"python -m pytest {folders} -k '{words}'"


KINDS: Final = (
    Kind("test functions", lambda: f"{len(tests()):,}", "make soak"),
    Kind(
        "of these, properties: their cases are generated", lambda: generated(tests()), "make soak"
    ),
    Kind(
        "oracles and models, written from the semantics", lambda: f"{len(oracles())}", "make test"
    ),
    Kind(
        "any split: cut anywhere into batches, blocks or tasks, input gives the same",
        lambda: generated(named(SPLITS)),
        of_name(SPLITS),
    ),
    Kind(
        "worlds: a simulated query whose partitions idle, come and go, beside its oracle",
        lambda: generated(test for test in tests() if "World(" in test.text),
        "make test",
    ),
    Kind(
        "simulation: the code of driver, tasks and store, with faults at any step, by seed",
        simulated,
        "make simulate",
    ),
    Kind(
        "random programs on a store, beside its model",
        lambda: (
            f"{generated(named('program'))}; as many as fit into the seconds: "
            f"{longer('MODEL_SECONDS', 'soak-store')}"
        ),
        of_name("program or random_operations"),
    ),
    Kind(
        "power losses, before and after every link and rename",
        lambda: f"more than {number('LEAST_LOSSES')}",
        of_name("survives_a_power_loss"),
    ),
    Kind("kills (SIGKILL) of drivers and writers", kills, of_name("kill", "integration")),
    Kind("faults of campaigns on a whole chain and on stores", fault_counts, "make chaos"),
    Kind("event time in one query, whose memory and files must stay flat", long_runs, "make long"),
    Kind("largest sizes, each with a bound of time and memory", sizes, "make bench"),
    Kind(
        "damaged files of a store, of each of two stores",
        lambda: f"{number('DAMAGES')}, {longer('DAMAGES', 'soak-store')}",
        of_name("no_damage"),
    ),
    Kind(
        "hostile payloads, in bounded time and memory",
        lambda: f"10,000 in each of {len(named('ten_thousand_hostile'))} tests",
        of_name("hostile"),
    ),
    Kind(
        "kinds of hostile input that a fuzzer makes, with a seed for each commit",
        lambda: f"{len(fuzz_targets())}, {seconds_of_fuzzing():g} seconds each in CI",
        "make fuzz",
    ),
    Kind(
        "seconds of random topics through the native reader, under the address sanitizer",
        lambda: f"{number('SOAK_SECONDS')}, {longer('SOAK_SECONDS', 'soak-native')}",
        of_name("sanitizer", "integration"),
    ),
    Kind("foreign libraries that read or write the same bytes", readers, "make test integration"),
    Kind("cases of other engines' own tests", cited, of_name(" or ".join(ENGINES))),
    Kind(
        "cases of a commercial time-series store's list",
        lambda: f"{len(value_of('case_numbers', 'NUMBERS'))}",
        of_name("conformance or cases", "tests integration"),
    ),
    Kind(
        "cases of Spark's Kafka suites, by its source and by ours",
        beside_spark,
        "make beside-spark",
    ),
    Kind("mutants of the pure rules", mutants, "make mutants"),
    Kind(
        "code blocks of the documents that are run", blocks_run, of_name("pages_run", "integration")
    ),
    Kind("rules of which folder may import which", import_rules, "make lint"),
)


def table() -> str:
    """The table of the page."""
    rows = [f"| {kind.what} | {kind.count()} | `{kind.command}` |" for kind in KINDS]
    return "\n".join(["| what | how many | repeat it with |", "| --- | --- | --- |", *rows])


def list_oracles() -> str:
    """The oracles by file."""
    by_path: dict[Path, list[str]] = {}
    for path, name in oracles():
        by_path.setdefault(path, []).append(name)
    rows = []
    for path, names in by_path.items():
        told = (ast.get_docstring(modules()[path]) or "").split("\n\n")[0].replace("\n", " ")
        shown = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| `{path.relative_to(ROOT)}` | {shown} | {told} |")
    return "\n".join(["| file | oracle | what it is for |", "| --- | --- | --- |", *rows])
