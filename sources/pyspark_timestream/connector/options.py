"""How an options dataclass reads Spark's string map: one declaration a field, one error shape.

Both packages declare their options with `option(...)` and read them with `read_options(...)`.
Every error names the option, the value, what is accepted, and the next step.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pyspark_timestream.connector.instants import format_duration, parse_duration

__all__ = [
    "OptionError",
    "OptionSpec",
    "Reader",
    "boolean",
    "choice",
    "duration",
    "option",
    "read_options",
    "refuse_catalog_table",
    "shown",
    "specs",
    "text",
    "whole_number",
]

T = TypeVar("T")
_KEY: Final = "option"

SPARK_INJECTED: Final = frozenset(
    {"path", "queryname", "checkpointlocation", "outputmode", "triggerinterval", "numrows"}
)
"""Lower-cased option names that Spark itself puts into the map of a source or sink."""


CATALOG_MARK: Final = "provider"
"""What Spark's CREATE TABLE asks a source with, besides `owner`, `location` and `option.*`."""


SECRET: Final = re.compile("password|secret|token|credential|jaas|private|[.]key$|[.]pem$")


def is_secret(name: str, value: str) -> bool:
    """Whether `name` speaks of a secret; of an address only where it holds one itself."""
    is_address = name.lower().endswith(".url") and "@" not in value
    return bool(SECRET.search(name.lower())) and not is_address


def shown(name: str, value: str) -> str:
    """`value` as a message may show it: quoted, or hidden where `name` speaks of a secret."""
    return "[hidden]" if is_secret(name, value) else f"'{value}'"


def without_secrets(text: str, config: Mapping[str, Any]) -> str:
    """`text`, which may quote `config`, with the values of its secret settings hidden."""
    for key, value in config.items():
        if isinstance(value, str) and value and is_secret(key, value):
            text = text.replace(value, "[hidden]")
    return text


class OptionError(ValueError):
    """The user gave options that cannot be carried out; nothing has been read or written.

    With `list_last` what is accepted, a long list, stands behind the next step.
    """

    __module__ = "pyspark_timestream"  # As users import it.

    def __init__(
        self, name: str, problem: str, accepts: str, next_step: str, *, list_last: bool = False
    ) -> None:
        parts = [f"accepted: {accepts}", f"next step: {next_step}"]
        rest = "; ".join(reversed(parts) if list_last else parts)
        super().__init__(f"option '{name}': {problem}; {rest}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """Reads one option's text.

    Attributes:
        parse: text -> value; raises ValueError with the reason.
        accepts: what is accepted, as an error and the README say it.
        wrong_type: a text of the wrong kind, refused by `parse`; None where every text is legal.
        out_of_range: a text of the right kind with an illegal value; None where there is none.
    """

    parse: Callable[[str], T]
    accepts: str
    wrong_type: str | None = None
    out_of_range: str | None = None


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """What is known of one option besides its type and default.

    Attributes:
        name: lowerCamelCase, as the README writes it; Spark matches it in any case.
        reader: reads its text.
        excludes: options that may not be given with it.
        needs: options of which at least one must be given with it.
        required: it must be given.
        help: the next step, where "correct or remove it" does not say enough.
    """

    name: str
    reader: Reader[Any]
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    required: bool = False
    help: str | None = None

    def next_step(self) -> str:
        """What the user does about a wrong value."""
        if self.help:
            return self.help
        return "correct it" if self.required else "correct it, or leave it out for the default"

    def error(self, problem: str) -> OptionError:
        """The error of this option with `problem` said."""
        return OptionError(self.name, problem, self.reader.accepts, self.next_step())


def option(
    name: str,
    reader: Reader[Any],
    default: Any = dataclasses.MISSING,
    *,
    excludes: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    help: str | None = None,
) -> Any:
    """A dataclass field that is the option `name`; without a default it is required."""
    required = default is dataclasses.MISSING
    spec = OptionSpec(name, reader, excludes, needs, required, help=help)
    return dataclasses.field(default=default, metadata={_KEY: spec})


def specs(options_class: type) -> dict[str, OptionSpec]:
    """Field name -> what is declared of it, in the order of declaration."""
    fields = dataclasses.fields(options_class)
    return {field.name: field.metadata[_KEY] for field in fields if _KEY in field.metadata}


def read_options(
    options_class: type[T],
    raw: Mapping[str, str],
    *,
    injected: frozenset[str] = SPARK_INJECTED,
    foreign: Mapping[str, str] | None = None,
    prefixes: Iterable[str] = (),
) -> T:
    """The options dataclass that `raw` stands for.

    Args:
        options_class: a frozen dataclass of `option(...)` fields.
        raw: option name in any case -> text.
        injected: lower-cased names to pass over in silence.
        foreign: names that belong elsewhere -> where they belong, for the error.
        prefixes: lower-cased beginnings of names that somebody else reads.

    Raises:
        OptionError: an unknown, unreadable, missing, conflicting or unaccompanied option.
    """
    given = {key.lower(): value for key, value in raw.items()}
    declared = specs(options_class)
    by_key = {spec.name.lower(): field for field, spec in declared.items()}
    _refuse_unknown(given, declared.values(), injected, foreign or {}, tuple(prefixes))
    values = {
        by_key[key]: _read(declared[by_key[key]], value)
        for key, value in given.items()
        if key in by_key
    }
    for spec in declared.values():
        _check_company(spec, declared.values(), given)
    return options_class(**values)


def refuse_catalog_table(raw: Mapping[str, str], source: str, view: str) -> None:
    """Refuses to be a table of Spark's catalog, which could be made and never be read.

    Spark tells a Python source no options of such a table, not even where it lies.

    Args:
        raw: option name in any case -> text.
        source: the format's name.
        view: the statement to go on with, a temporary view.

    Raises:
        OptionError: `raw` is what CREATE TABLE asks with.
    """
    if CATALOG_MARK in {key.lower() for key in raw}:
        raise OptionError(
            CATALOG_MARK,
            f"'{source}' cannot be the provider of a table (CREATE TABLE, saveAsTable): Spark "
            "tells a Python source no options of such a table, so it could never be read",
            "a temporary view, or a DataFrame",
            view,
        )


def _refuse_unknown(
    given: Mapping[str, str],
    declared: Iterable[OptionSpec],
    injected: frozenset[str],
    foreign: Mapping[str, str],
    prefixes: tuple[str, ...],
) -> None:
    names = {spec.name.lower(): spec.name for spec in declared}
    elsewhere = {name.lower(): (name, place) for name, place in foreign.items()}
    for key, value in given.items():
        if key in names or key in injected or (prefixes and key.startswith(prefixes)):
            continue
        if key in elsewhere:
            name, place = elsewhere[key]
            raise OptionError(
                name,
                f"{shown(name, value)} was given, but it {place}",
                "nothing here",
                "leave it out",
            )
        raise _unknown(key, value, names)


def _unknown(key: str, value: str, names: Mapping[str, str]) -> OptionError:
    """The error of an option that is not declared.

    Its value is shown only where the name is nearly a known one: what it is otherwise nobody
    knows, and it may be a secret under a misspelled name.
    """
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
    alike = bool(difflib.get_close_matches(key, names, n=1, cutoff=0.75))
    meant = f": did you mean '{names[near[0]]}'?" if near else ""
    given = shown(key, value) if alike else "[hidden]"
    return OptionError(
        key,
        f"there is no such option{meant} (its value was {given})",
        ", ".join(sorted(names.values())),
        "correct the name, or leave it out",
        list_last=True,
    )


def _read(spec: OptionSpec, value: str) -> Any:
    try:
        return spec.reader.parse(value)
    except ValueError as error:
        raise spec.error(f"cannot read '{value}' ({error})") from error


def _check_company(
    spec: OptionSpec, declared: Iterable[OptionSpec], given: Mapping[str, str]
) -> None:
    value = given.get(spec.name.lower())
    if value is None:
        rivals = (other for other in declared if spec.name in other.excludes)
        replaced = any(rival.name.lower() in given for rival in rivals)
        if spec.required and not replaced:
            raise OptionError(spec.name, "it is missing", spec.reader.accepts, "set it")
        return
    for other in spec.excludes:
        if other.lower() in given:
            raise OptionError(
                spec.name,
                f"'{value}' conflicts with option '{other}' ('{given[other.lower()]}')",
                f"one of '{spec.name}' and '{other}'",
                "leave one of the two out",
            )
    if spec.needs and not any(need.lower() in given for need in spec.needs):
        raise OptionError(
            spec.name,
            f"'{value}' has no effect alone",
            "it together with " + " or ".join(f"'{need}'" for need in spec.needs),
            f"set {' or '.join(repr(need) for need in spec.needs)} too, or leave it out",
        )


text: Final = Reader(str, "any text")
"""Every text is legal, the empty one included."""


def _parse_boolean(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return value.strip().lower() == "true"


boolean: Final = Reader(_parse_boolean, "'true' or 'false'", wrong_type="maybe")


def choice(*names: str) -> Reader[str]:
    """One of `names`, in any case; the value is the name as given here."""

    def parse(value: str) -> str:
        for name in names:
            if value.strip().lower() == name.lower():
                return name
        raise ValueError("none of the accepted words")

    return Reader(parse, ", ".join(f"'{name}'" for name in names), wrong_type="42")


_WHOLE: Final = re.compile("[+-]?[0-9]+")


def whole_number(at_least: int = 0) -> Reader[int]:
    """A whole number, `at_least` inclusive, below 2**63."""

    def parse(value: str) -> int:
        # int() takes digits of every script, and underscores.
        if not _WHOLE.fullmatch(value.strip()):
            raise ValueError("not a whole number")
        number = int(value)
        if not at_least <= number < 2**63:
            raise ValueError(f"must be at least {at_least} and below 2^63")
        return number

    accepts = f"a whole number, at least {at_least}"
    return Reader(parse, accepts, wrong_type="many", out_of_range=str(at_least - 1))


def duration(at_least_us: int | None = None) -> Reader[int]:
    """A duration in microseconds such as `5 seconds`, `at_least_us` inclusive."""

    def parse(value: str) -> int:
        us = parse_duration(value)
        if at_least_us is not None and us < at_least_us:
            raise ValueError(f"must be at least {format_duration(at_least_us)}")
        return us

    bound = "" if at_least_us is None else f", at least {format_duration(at_least_us)}"
    return Reader(
        parse,
        f"a duration such as '5 seconds'{bound}",
        wrong_type="soon",
        out_of_range=None if at_least_us is None else f"{at_least_us - 1} ticks",
    )
