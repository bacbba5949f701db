"""Declares options as fields of a dataclass, and reads them from Spark's string map.

Both packages declare their options with `option(...)` and read them with `read_options(...)`.
Every error names the option, the value, what is accepted, and the next step.
"""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from pyspark_timestream.errors import LOGIN, OptionError, shorten

T = TypeVar("T")
Effect = Literal["stream", "batch", "both"]
Change = Literal["", "value", "more", "beside"]
_KEY: Final = "option"

NEEDED_ADVICE: Final = "correct it"
"""The next step about a wrong value of an option that cannot be left out."""


MEANT: Final = {
    "topic": "subscribe",
    "topics": "subscribe",
    "format": "valueformat",
    "framing": "valueframing",
    "watermark": "ctidelay",
    "timestampasof": "asof",
    "versionasof": "asof",
}
"""Names that options have elsewhere, and the option that is meant where a format has it."""

_OF_STORES: Final = "give it to format 'tseries', whose option it is, or leave it out"
_OF_SOURCES: Final = "give it to spark.readStream.format('timestream'), or leave it out"
_OF_TRIGGERS: Final = "call .trigger(...) of df.writeStream in its place"
OF_OTHERS: Final = {
    **dict.fromkeys(("retainedrange", "seriesname", "outoforder"), _OF_STORES),
    **dict.fromkeys(("subscribe", "ctidelay", "ctifrequency", "starttime"), _OF_SOURCES),
    **dict.fromkeys(("availablenow", "processingtime"), _OF_TRIGGERS),
}
"""The next step for an option that belongs to something else."""

SPARK_INJECTED: Final = frozenset(
    {"path", "queryname", "checkpointlocation", "outputmode", "triggerinterval", "numrows"}
)
"""Lower-cased option names that Spark itself puts into the map of a source or sink."""

_SECRET: Final = "passw|pwd|secret|token|credential|cookie|private|jaas|user[.]info"
_SECRET_SETTING: Final = re.compile(f"(?i:{_SECRET}|[.](key|pem)$)")
_SECRET_FIELD: Final = re.compile(
    f"(?i:{_SECRET}|key$|iban|ssn|cvv|pin$|card(?!inalit))|(?i:auth)(?!or(?!i[sz])|OR(?!I[SZ]))"
)
"""Matches parts of secrets' names, but neither `author` nor `cardinality`."""

_PLAIN_KEY: Final = re.compile(
    "(?i:key|(?:foreign|partition|record|sort)[ _-]?key|primary[ _-]key)"
)
"""Matches keys that identify a record. Cloud services call one of their secrets `primaryKey`."""

_SECRET_KEY: Final = frozenset(
    ("api", "access", "account", "encryption", "license", "master", "session", "shared", "signing",
     "ssh", "storage", "subscription", "webhook")
)  # fmt: skip
"""A word before "key" or "keys" that makes a secret of it anywhere in a name."""

_NAME_WORD: Final = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def split_name(name: str) -> list[str]:
    """Split a name into its words, in lower case.

    >>> split_name("URLOfEvent_time")
    ['url', 'of', 'event', 'time']
    """
    return [word.lower() for word in _NAME_WORD.findall(name)]


def suggests_secret(name: str) -> bool:
    """Return whether the name of a field or header suggests that it holds a secret.

    >>> [suggests_secret(name) for name in ("apiKey", "db_password", "primary_key", "author")]
    [True, True, False, False]
    """
    if _PLAIN_KEY.fullmatch(name) is not None:
        return False
    if _SECRET_FIELD.search(name) is not None:
        return True
    words = split_name(name)
    return (
        "pin" in words
        or any(f"{word}key" in words for word in _SECRET_KEY)
        or any(
            word in ("key", "keys") and before in _SECRET_KEY
            for before, word in itertools.pairwise(words)
        )
    )


def is_secret(name: str, value: str) -> bool:
    """Return whether `name` is a setting's with a secret, or `value` an address with one."""
    is_address = name.lower().endswith(".url") and "@" not in value
    is_named_so = bool(_SECRET_SETTING.search(name)) and not is_address
    return is_named_so or LOGIN.search(value) is not None


def quote_column(name: str) -> str:
    """Quote the name of a column for Spark, which takes a dot for the way into a struct."""
    return "`" + name.replace("`", "``") + "`"


def quote_value(name: str, value: str) -> str:
    """Quote `value` for a message, or hide it if it is a secret."""
    return "[hidden]" if is_secret(name, value) else f"'{value}'"


def quote_setting(text: str | None) -> str:
    """Quote an option's text for a message; None means that the option is not set.

    >>> quote_setting("5 s"), quote_setting(None)
    ("'5 s'", 'not set')
    """
    return "not set" if text is None else f"'{text}'"


def hide_secrets(text: str, config: Mapping[str, Any]) -> str:
    """Hide the values of secret settings of `config` in `text`."""
    for key, value in config.items():
        if isinstance(value, str) and value and is_secret(key, value):
            text = text.replace(value, "[hidden]")
    return text


@dataclass(frozen=True, slots=True)
class Parser(Generic[T]):
    """Reads one option's text.

    Attributes:
        parse: text -> value; raises ValueError with the reason.
        accepts: the accepted values, in the words of errors and of the reference.
        format: value -> text that reads back to it.
        none_text: the text that reads as None; None where None means "not given".
    """

    parse: Callable[[str], T]
    accepts: str
    format: Callable[[Any], str] = str
    none_text: str | None = None


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """The declaration of one option, all but its type.

    Attributes:
        name: lowerCamelCase, as the reference writes it; Spark matches it in any case.
        parser: reads its text.
        default: its value if it is not given; MISSING: it must be given.
        description: its entry in the reference, one line of Markdown.
        excludes: options that may not be given with it.
        needs: at least one of these options must be given with it.
        effect: the kind of query that it changes. A batch read ignores an option of streams.
        is_pinned: a restart from the checkpoint with another value is refused, unless option
            `changeFrom` allows it.
        allowed_change: what `changeFrom` allows for a pinned option: another `value`, `more`
            entries, or to add it or leave it out `beside` another; empty for nothing.
        help: the next step, where "correct it, or leave it out" does not say enough.
    """

    name: str
    parser: Parser[Any]
    default: Any
    description: str
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    effect: Effect = "both"
    is_pinned: bool = False
    allowed_change: Change = ""
    help: str | None = None

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is dataclasses.MISSING

    def next_step(self) -> str:
        """Return the advice about a wrong value."""
        if self.help:
            return self.help
        return (
            NEEDED_ADVICE if self.required else f"{NEEDED_ADVICE}, or leave it out for the default"
        )

    def text_of(self, value: Any) -> str | None:
        """Return the text that reads back to `value`; None if that means "not given"."""
        return self.parser.none_text if value is None else self.parser.format(value)

    def read(self, text: str) -> Any:
        """Return the value that the option's text stands for.

        Raises:
            OptionError: the text cannot be read.
        """
        try:
            return self.parser.parse(text)
        except RecursionError:
            problem = f"cannot read '{text[:100]}...' (it is nested too deeply)"
            raise self.error(problem) from None
        except ValueError as error:
            raise self.error(f"cannot read '{text}' ({error})") from error

    def error(self, problem: str) -> OptionError:
        """Return this option's error about `problem`."""
        return OptionError(self.name, problem, self.parser.accepts, self.next_step())


def option(
    name: str,
    parser: Parser[Any],
    default: Any = dataclasses.MISSING,
    *,
    description: str,
    excludes: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    effect: Effect = "both",
    is_pinned: bool = False,
    allowed_change: Change = "",
    help: str | None = None,
) -> Any:
    """Declare a dataclass field as the option `name`; without a default it is required."""
    spec = OptionSpec(
        name=name,
        parser=parser,
        default=default,
        description=description,
        excludes=excludes,
        needs=needs,
        effect=effect,
        is_pinned=is_pinned,
        allowed_change=allowed_change,
        help=help,
    )
    return dataclasses.field(default=default, metadata={_KEY: spec})


def option_specs(options_class: type) -> dict[str, OptionSpec]:
    """Map each field name to its option's declaration, in the order of declaration."""
    fields = dataclasses.fields(options_class)
    return {field.name: field.metadata[_KEY] for field in fields if _KEY in field.metadata}


def pinned_settings(options: Any) -> dict[str, str]:
    """Return the pinned options, as option name -> text.

    Equal values have equal texts, however the user spelt them. Options without a value are left
    out.
    """
    texts = {
        spec.name: spec.text_of(getattr(options, field))
        for field, spec in option_specs(type(options)).items()
        if spec.is_pinned
    }
    return {name: text for name, text in texts.items() if text is not None}


def read_options(
    options_class: type[T],
    raw: Mapping[str, str],
    *,
    foreign: Mapping[str, str] | None = None,
    prefixes: Iterable[str] = (),
    settings: Sequence[str] = (),
) -> T:
    """Read `raw` into an options dataclass.

    Args:
        options_class: a frozen dataclass of `option(...)` fields.
        raw: option name in any case -> text.
        foreign: name that belongs elsewhere -> the place, in words for the error.
        prefixes: lower-cased prefixes of names that are read elsewhere.
        settings: names of client settings with their prefixes, for the error about an unknown
            name: it suggests the setting with the missing prefix, or the first one's prefix for a
            dotted name that matches none.

    Raises:
        OptionError: an option is unknown, unreadable, missing, in conflict with another, or lacks
            one that it needs.
    """
    texts = {key.lower(): value for key, value in raw.items()}
    declared = option_specs(options_class)
    by_key = {spec.name.lower(): field for field, spec in declared.items()}
    own_texts = {key: value for key, value in texts.items() if not key.startswith(tuple(prefixes))}
    _refuse_unknown(own_texts, declared.values(), foreign or {}, settings)
    values = {
        by_key[key]: declared[by_key[key]].read(value)
        for key, value in texts.items()
        if key in by_key
    }
    for spec in declared.values():
        _check_companions(spec, declared.values(), texts)
    return options_class(**values)


def check_given(specs: Iterable[OptionSpec], raw: Mapping[str, str]) -> None:
    """Check options that others may be added to: each text, and that none excludes another.

    Raises:
        OptionError: a text cannot be read, or two options conflict.
    """
    texts = {key.lower(): value for key, value in raw.items()}
    given = [spec for spec in specs if spec.name.lower() in texts]
    for spec in given:
        spec.read(texts[spec.name.lower()])
    for spec in given:
        _check_excluded(spec, texts)


def _refuse_unknown(
    texts: Mapping[str, str],
    declared: Iterable[OptionSpec],
    foreign: Mapping[str, str],
    settings: Sequence[str],
) -> None:
    names = {spec.name.lower(): spec.name for spec in declared}
    elsewhere = {name.lower(): (name, remark) for name, remark in foreign.items()}
    for key, value in texts.items():
        if key in names or key in SPARK_INJECTED:
            continue
        if key in elsewhere:
            name, remark = elsewhere[key]
            raise OptionError(
                name,
                f"{quote_value(name, value)} was given, but it {remark}",
                "nothing here",
                "leave it out",
            )
        raise _unknown_option(key, value, names, settings)


def _unknown_option(
    key: str, value: str, names: Mapping[str, str], settings: Sequence[str]
) -> OptionError:
    """Return the error about an option that is not declared.

    It shows the value only if the name is close to a known one: otherwise the value may be a secret
    under a misspelled name.
    """
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if key in OF_OTHERS:
        near = []
    elif MEANT.get(key) in names:
        near = [MEANT[key]]
    alike = bool(difflib.get_close_matches(key, names, n=1, cutoff=0.75))
    name = _find_setting(key, settings)
    if name is None and settings and "." in key and not alike:
        name = f"{settings[0].partition('.')[0]}.{key}"
    elif name is None and near:
        name = names[near[0]]
    meant = f": did you mean '{name}'?" if name is not None else ""
    shown_value = quote_value(key, value) if alike else "[hidden]"
    return OptionError(
        key,
        f"there is no such option{meant} (its value was {shown_value})",
        ", ".join(sorted(names.values())),
        OF_OTHERS.get(key, "correct the name, or leave it out"),
        list_last=True,
    )


def _find_setting(key: str, settings: Sequence[str]) -> str | None:
    """Find the client setting that `key` names without its prefix or with other punctuation."""
    for setting in settings:
        prefix, _, bare = setting.partition(".")
        if _flatten(key) in (_flatten(bare), _flatten(prefix + bare)):
            return setting
    return None


def _flatten(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", "._-"))


def _check_companions(
    spec: OptionSpec, declared: Iterable[OptionSpec], texts: Mapping[str, str]
) -> None:
    value = texts.get(spec.name.lower())
    if value is None:
        rivals = (excluded for excluded in declared if spec.name in excluded.excludes)
        replaced = any(rival.name.lower() in texts for rival in rivals)
        if spec.required and not replaced:
            raise OptionError(spec.name, "it is missing", spec.parser.accepts, "set it")
        return
    _check_excluded(spec, texts)
    if spec.needs and not any(need.lower() in texts for need in spec.needs):
        raise OptionError(
            spec.name,
            f"'{value}' has no effect alone",
            "it together with " + " or ".join(f"'{need}'" for need in spec.needs),
            f"set {' or '.join(repr(need) for need in spec.needs)} too, or leave it out",
        )


def _check_excluded(spec: OptionSpec, texts: Mapping[str, str]) -> None:
    for excluded in spec.excludes:
        if excluded.lower() in texts:
            raise OptionError(
                spec.name,
                f"'{texts[spec.name.lower()]}' conflicts with option '{excluded}' "
                f"('{texts[excluded.lower()]}')",
                f"one of '{spec.name}' and '{excluded}'",
                "leave one of the two out",
            )


TEXT: Final = Parser(str, "any text")
"""Any text is accepted, even an empty one."""


def _parse_boolean(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return value.strip().lower() == "true"


BOOLEAN: Final = Parser(
    _parse_boolean, "'true' or 'false'", format=lambda value: str(value).lower()
)


def choice(*names: str) -> Parser[str]:
    """Return a parser that accepts `names` in any case, and returns the name as spelt here."""

    def parse(value: str) -> str:
        for name in names:
            if value.strip().lower() == name.lower():
                return name
        raise ValueError("none of the accepted words")

    return Parser(parse, ", ".join(f"'{name}'" for name in names))


_WHOLE_NUMBER: Final = re.compile("[+-]?[0-9]+")


def whole_number(at_least: int = 0) -> Parser[int]:
    """Return a parser of whole numbers from `at_least` (inclusive) to 2**63 (exclusive)."""

    def parse(value: str) -> int:
        # int() would also accept underscores and digits of other scripts.
        if not _WHOLE_NUMBER.fullmatch(value.strip()):
            raise ValueError("not a whole number")
        number = int(value)
        if not at_least <= number < 2**63:
            raise ValueError(f"must be at least {at_least} and below 2^63")
        return number

    accepts = f"a whole number, at least {at_least}"
    return Parser(parse, accepts)


def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of parsed JSON.

    Raises:
        ValueError: a name is there twice, and one of its values would be lost in silence.
    """
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"'{shorten(name)}' is there twice")
        entries[name] = value
    return entries


def decode_file_uri(uri: str) -> str:
    """Return the local path that a `file:` URI names.

    Raises:
        ValueError: it names another machine; or it has a query or a fragment, which no file has and
            which Hadoop takes for a part of the path.

    >>> decode_file_uri("file:///tmp/a%20store")
    '/tmp/a store'
    """
    url = urlsplit(uri)
    if url.netloc not in ("", "localhost"):
        raise ValueError(f"the host '{url.netloc}' of a file: URI is another machine")
    if "?" in uri or "#" in uri:
        raise ValueError(
            "a '?' or '#' of a file: URI is written %3F or %23, or the path is given "
            "without 'file:'"
        )
    return unquote(url.path, errors="surrogateescape")
