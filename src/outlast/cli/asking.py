"""Options that many verbs share: where the letters are, who asks, which letters are meant.

In: the function of a verb. Out: the same with the options of `Asked`, `Wanted` or `Mending`. An
option of `Asked` may stand before or after its verb: the nearest one counts. Imports nothing heavy.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

import typer

R = TypeVar("R")

_UNSAID: tuple[Any, ...] = (None, False, [])

_HERE = "Where and who"
_WHICH = "Which letters"
_WHAT = "What to change"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What holds for every verb. None: as the settings say."""

    json: bool = False
    config: str | None = None
    dsn: str | None = None
    table: str | None = None
    dlq_table: str | None = None
    app: str | None = None
    actor: str | None = None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The filter: its words as they were typed, and the options that stand for words."""

    words: tuple[str, ...] = ()
    subscription: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    subscriber: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None

    @property
    def text(self) -> str:
        """The filter as one text."""
        return " ".join(self.words)

    @property
    def has_options(self) -> bool:
        """Whether an option names letters."""
        return any(getattr(self, field.name) for field in fields(self) if field.name != "words")


@dataclass(frozen=True, kw_only=True)
class Mending:
    """What is to be changed of a message before it is sent, as it was typed."""

    patch: str | None = None
    transform: str | None = None
    header: tuple[str, ...] = ()
    unset_header: tuple[str, ...] = ()
    not_idempotent: bool = False


def _option(help_text: str, name: str, panel: str, metavar: str) -> Any:
    return typer.Option(name, help=help_text, rich_help_panel=panel, metavar=metavar)


def flag(help_text: str, *names: str, panel: str | None = None) -> Any:
    """An option without a value: its help names no type."""
    return typer.Option(*names, help=help_text, metavar="", rich_help_panel=panel)


ASKED: Mapping[str, Any] = {
    "json": Annotated[bool, flag("One JSON document on stdout.", "--json", panel=_HERE)],
    "config": Annotated[
        str | None,
        _option(
            "A file of settings (OUTLAST_CONFIG; else outlast.toml).", "--config", _HERE, "FILE"
        ),
    ],
    "dsn": Annotated[
        str | None,
        _option("URL or SQLite file (OUTLAST_DSN, DATABASE_URL).", "--dsn", _HERE, "URL"),
    ],
    "table": Annotated[
        str | None, _option("Outbox, or schema.outbox (OUTLAST_TABLE).", "--table", _HERE, "NAME")
    ],
    "dlq_table": Annotated[
        str | None,
        _option("Dead-letter table (OUTLAST_DLQ_TABLE).", "--dlq-table", _HERE, "NAME"),
    ],
    "app": Annotated[
        str | None,
        _option(
            "The application, whose models check bodies (OUTLAST_APP).",
            "--app",
            _HERE,
            "MODULE:ATTRIBUTE",
        ),
    ],
    "actor": Annotated[
        str | None, _option("Who acts, for the history (OUTLAST_ACTOR).", "--actor", _HERE, "NAME")
    ],
}

_WORDS_HELP = """Words in single quotes: queue:orders subscriber: id: message: event: category:
reason: triage: owner: state:any error:timeout group: version: since:2h until: replays:>=2
header.NAME: body.a.b: (-word: negates)."""


def _words(metavar: str, help_text: str) -> Any:
    return Annotated[list[str] | None, typer.Argument(metavar=metavar, help=help_text)]


WANTED: Mapping[str, Any] = {
    "words": _words("FILTER", _WORDS_HELP),
    **{
        name: Annotated[
            list[str] | None, _option(f"{word}: (may be repeated).", option, _WHICH, "NAME")
        ]
        for name, word, option in (
            ("subscription", "queue", "--subscription"),
            ("queue", "queue", "--queue"),
            ("subscriber", "subscriber", "--subscriber"),
            ("category", "category", "--category"),
            ("state", "state", "--state"),
        )
    },
    "since": Annotated[str | None, _option("2h, 3d, or a time.", "--since", _WHICH, "TIME")],
    "until": Annotated[str | None, _option("2h, 3d, or a time.", "--until", _WHICH, "TIME")],
}
_WANTED_OR_ID = {**WANTED, "words": _words("ID | FILTER", f"By id, or by filter. {_WORDS_HELP}")}


MENDING: Mapping[str, Any] = {
    "patch": Annotated[
        str | None, _option("A JSON Patch: its text, or a file of it.", "--patch", _WHAT, "P")
    ],
    "transform": Annotated[
        str | None,
        _option("A Python function that changes it.", "--transform", _WHAT, "MODULE:FUNCTION"),
    ],
    "header": Annotated[
        list[str] | None,
        _option("Set a header (may be repeated).", "--header", _WHAT, "NAME=VALUE"),
    ],
    "unset_header": Annotated[
        list[str] | None,
        _option("Take a header away (may be repeated).", "--unset-header", _WHAT, "NAME"),
    ],
    "not_idempotent": Annotated[
        bool,
        flag("The transform may give another result each time.", "--not-idempotent", panel=_WHAT),
    ],
}


def asked(function: Callable[..., R]) -> Callable[..., R]:
    """Give a verb, or a group of verbs, the options of `Asked`; they end up in `ctx.obj`."""

    def remembering(**given: Any) -> R:
        ctx: typer.Context = given["ctx"]
        own = {name: given.pop(name) for name in ASKED}
        outer = ctx.obj if isinstance(ctx.obj, Asked) else Asked()
        said = {name: value for name, value in own.items() if value not in {None, False}}
        ctx.obj = Asked(**{name: getattr(outer, name) for name in ASKED} | said)
        return function(**given)

    defaults = {name: False if name == "json" else None for name in ASKED}
    return _with_options(function, remembering, ASKED, defaults, frozenset())


def wanted(function: Callable[..., R]) -> Callable[..., R]:
    """Give a verb the filter; it arrives as the argument `wanted`."""
    return _wanting(function, WANTED)


def wanted_or_id(function: Callable[..., R]) -> Callable[..., R]:
    """The same for a verb that takes ids in the place of a filter."""
    return _wanting(function, _WANTED_OR_ID)


def _wanting(function: Callable[..., R], options: Mapping[str, Any]) -> Callable[..., R]:
    def gathering(**given: Any) -> R:
        wanted = Wanted(**_said(given, options))
        return function(**given, wanted=wanted)

    defaults = dict.fromkeys(options)
    return _with_options(function, gathering, options, defaults, frozenset({"wanted"}))


def mended(function: Callable[..., R]) -> Callable[..., R]:
    """Give a verb the options that change a message; they arrive as the argument `mending`."""

    def gathering(**given: Any) -> R:
        mending = Mending(**_said(given, MENDING))
        return function(**given, mending=mending)

    defaults = dict.fromkeys(MENDING) | {"not_idempotent": False}
    return _with_options(function, gathering, MENDING, defaults, frozenset({"mending"}))


def _said(given: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Take these options out of what was given; those that were said."""
    own = {name: given.pop(name) for name in options}
    return {n: tuple(v) if isinstance(v, list) else v for n, v in own.items() if v not in _UNSAID}


def _with_options(
    function: Callable[..., R],
    outer: Callable[..., R],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    hidden: frozenset[str],
) -> Callable[..., R]:
    """Typer reads signature and annotations; both say what the outer function takes."""
    kept = [p for p in inspect.signature(function).parameters.values() if p.name not in hidden]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name],
            annotation=annotation,
        )
        for name, annotation in options.items()
    ]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept]
    outer.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    outer.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
    outer.__doc__ = function.__doc__
    outer.__name__ = function.__name__
    return outer


def shaped(arguments: list[str]) -> list[str]:
    """The arguments as the parser takes them: `--wait` alone has a time, `-word:` is no option."""
    result: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*result, *arguments[place:]]
        if argument == "--wait":
            result.append("--wait=10m")
        elif _is_negated_word(argument):
            # a blank before it: a filter does not mind, and the parser sees no option
            result.append(f" {argument}")
        else:
            result.append(argument)
    return result


def _is_negated_word(argument: str) -> bool:
    name, colon, _ = argument[1:].partition(":")
    return argument.startswith("-") and bool(colon) and name[:1].isalpha()
