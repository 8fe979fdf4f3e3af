"""Settings: one typed schema for the command line and the server, read when a verb runs.

In: a file `outlast.toml`, the environment, options. Out: `Settings`, each value checked; options
win over the environment, the environment over the file. A `ConfigError` names the key and where its
value came from, and never shows a secret. The texts here are the reference page.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from outlast.model.errors import OutlastError
from outlast.policy.masking import SECRET_NAMES, Masker
from outlast.policy.neutral_text import neutral_text

if TYPE_CHECKING:
    from outlast.ops.options import BodyTest, DeskOptions

FILE_NAME = "outlast.toml"
ENV_PREFIX = "OUTLAST_"

OTHER_VARIABLES: Mapping[str, str] = {
    "OUTLAST_CONFIG": "The settings file, as `--config`; it must be there.",
    "OUTLAST_ACTOR": "Who acts, for the history, as `--actor`.",
    "OUTLAST_TRACEBACK": "Set to anything: unexpected errors show their traceback.",
    "DATABASE_URL": "The database, where nothing else names one.",
}
"""Variables that are no settings."""

_FILE_BYTES_MAX = 1024 * 1024
_ITEMS_MAX = 1000
_TEXT_CHARS_MAX = 4096
_SHOWN_CHARS_MAX = 80
_NEAR = 0.8
_SECRETS = frozenset({"dsn", "tokens"})

_SPAN = re.compile(r"(?:[0-9]{1,9}[wdhms])+")
_SPAN_PART = re.compile(r"([0-9]+)([wdhms])")
_UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_SPAN_MAX = timedelta(days=36_525)
_REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_ORIGIN = re.compile(r"https?://[a-z0-9.\-\[\]:]+")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_SERVICE_LINK = re.compile(r"(?:tcp|udp|sctp)://")


class ConfigError(OutlastError):
    """A setting that cannot be used. The sentence says which, where from, and what is allowed."""


def _text(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text or not text.isprintable() or len(text) > _TEXT_CHARS_MAX:
        raise ValueError
    return text


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - pydantic turns only this one into a refusal
    return value


def _span(value: object) -> timedelta:
    text = _text(value)
    if _SPAN.fullmatch(text) is None:
        raise ValueError
    seconds = sum(int(number) * _UNITS[unit] for number, unit in _SPAN_PART.findall(text))
    if not 0 < seconds <= _SPAN_MAX.total_seconds():
        raise ValueError
    return timedelta(seconds=seconds)


def _words(value: object) -> tuple[str, ...]:
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or len(items) > _ITEMS_MAX:
        raise ValueError
    return tuple(_text(item) for item in items)


def _lines(value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError
    return _words([line for item in items for line in item.split()])


def _matching(pattern: re.Pattern[str], value: str) -> str:
    if pattern.fullmatch(value) is None:
        raise ValueError
    return value


def _reference(value: object) -> str:
    return _matching(_REFERENCE, _text(value))


def _references(value: object) -> tuple[str, ...]:
    return tuple(_reference(item) for item in _words(value))


def _origins(value: object) -> tuple[str, ...]:
    return tuple(_matching(_ORIGIN, item.lower().rstrip("/")) for item in _words(value))


def _prefix(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004
    return _matching(_PATH, value.strip().rstrip("/"))


def _key(
    default: Any,
    allowed: str,
    about: str,
    *,
    secret: bool = False,
    ge: int | None = None,
    le: int | None = None,
) -> Any:
    return Field(
        default,
        validate_default=True,
        description=about,
        repr=not secret,
        json_schema_extra={"allowed": allowed},
        ge=ge,
        le=le,
    )


class Settings(BaseSettings):
    """Every setting, by the name it has everywhere."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        enable_decoding=False,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    dsn: Annotated[str, BeforeValidator(_text)] | None = _key(
        None,
        "a URL such as `postgresql://user@host/name`, or the path of a SQLite file",
        "The database. Without it `DATABASE_URL` is taken.",
        secret=True,
    )
    table: Annotated[str, BeforeValidator(_text)] = _key(
        "outbox", "`name` or `schema.name`", "The outbox table."
    )
    dlq_table: Annotated[str, BeforeValidator(_text)] = _key(
        "outbox_dlq", "`name` or `schema.name`", "The table of dead letters."
    )
    app: Annotated[str, BeforeValidator(_reference)] | None = _key(
        None,
        "`module:attribute`",
        "The application whose models say whether a body would be accepted. It is imported, from "
        "the current folder too; nothing else needs it.",
    )
    tokens: Annotated[tuple[str, ...], BeforeValidator(_lines)] = _key(
        (),
        "the lines of `outlast tokens new`: a list, or one text with blanks or line feeds between",
        "Who may use the server, and what for. A line holds a hash, never the secret.",
        secret=True,
    )
    host: Annotated[str, BeforeValidator(_text)] = _key(
        "127.0.0.1",
        "an address or a name",
        "Where `serve` listens. Any address but loopback needs tokens.",
    )
    port: Annotated[int, BeforeValidator(_number)] = _key(
        8787,
        "a whole number from 0 to 65535",
        "The port `serve` listens on; 0 takes a free one.",
        ge=0,
        le=65_535,
    )
    prefix: Annotated[str, BeforeValidator(_prefix)] = _key(
        "", "a path such as `/outlast`, or nothing", "The path under which `serve` answers."
    )
    origins: Annotated[tuple[str, ...], BeforeValidator(_origins)] = _key(
        (),
        "a list of origins such as `https://desk.example.org`",
        "Other sites whose pages may change something through the server.",
    )
    secret_names: Annotated[tuple[str, ...], BeforeValidator(_words)] = _key(
        (),
        "a list of names; `customer code` stands for `customerCode` and `Customer-Code` too",
        "Keys whose values are masked, besides those that always are.",
    )
    require_reason: bool = _key(
        False, "true or false", "Refuse to replay or purge where no reason is given."
    )
    replays_max: Annotated[int, BeforeValidator(_number)] = _key(
        3,
        "a whole number from 1 to 1000",
        "Replays of a letter, since it was last opened, after which it is escalated.",
        ge=1,
        le=1000,
    )
    keep_discarded: Annotated[timedelta, BeforeValidator(_span)] = _key(
        "7d",
        "a span such as `90s`, `12h`, `7d`, `2w` or `1d12h`, up to a century",
        "How long a purged letter can be restored; then `serve` deletes it.",
    )
    keep_resolved: bool = _key(
        False,
        "true or false",
        "Never delete letters whose replay succeeded; else `serve` does a week after it.",
    )
    transforms: Annotated[tuple[str, ...], BeforeValidator(_references)] = _key(
        (),
        "a list of `module:function`",
        "Transforms that callers of the server may name. None unless they are listed.",
    )

    def desk_options(self, body_test: "BodyTest | None" = None) -> "DeskOptions":
        """The options of a desk."""
        # loads the desk, which whoever only reads settings does not need
        from outlast.ops.options import DeskOptions  # noqa: PLC0415

        return DeskOptions(
            replays_max=self.replays_max,
            keep_discarded_seconds=self.keep_discarded.total_seconds(),
            keep_resolved=self.keep_resolved,
            require_reason=self.require_reason,
            secret_names=(*SECRET_NAMES, *self.secret_names),
            body_test=body_test,
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is handed over: `load_settings` reads each source, and knows what is whose."""
        return (init_settings,)


class _Layer(NamedTuple):
    """The values of one source; `says` names the place of a key in it."""

    values: Mapping[str, Any]
    places: Mapping[str, str]


def load_settings(file: Path | None = None, **given: Any) -> Settings:
    """The settings of this process. `given` are options: None, and what is empty, says nothing."""
    unknown = given.keys() - Settings.model_fields
    if unknown:
        raise TypeError(f"there is no setting {', '.join(sorted(unknown))}")
    path = _file(file)
    said = {name: value for name, value in given.items() if value not in (None, "", (), [])}
    options = _Layer(said, {name: f"option --{name.replace('_', '-')}" for name in said})
    in_file = _Layer({}, {}) if path is None else _of_file(path)
    layers = (_last_resort(), in_file, _of_environment(), options)
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for layer in layers:
        values |= layer.values
        places |= layer.places
    try:
        return Settings(**values)
    except ValidationError as error:
        wrong = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        # the error holds every value: it goes no further
        raise _refused(wrong, values.get(wrong), places.get(wrong, "default")) from None


def _refused(name: str, value: object, place: str) -> ConfigError:
    allowed = Settings.model_fields[name].json_schema_extra
    assert isinstance(allowed, dict), "every key has its texts"
    shown = "used as it is" if name in _SECRETS else _shown(value)
    return ConfigError(f"{place}: {name} cannot be {shown}: it takes {allowed['allowed']}")


def _shown(value: object) -> str:
    try:
        written = repr(value)
    except ValueError:
        return "a number of that size"
    text = neutral_text(Masker().text(written).value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def _of_environment() -> _Layer:
    names = {f"{ENV_PREFIX}{name.upper()}": name for name in Settings.model_fields}
    for variable in os.environ:
        if variable.startswith(ENV_PREFIX) and variable not in {*names, *OTHER_VARIABLES}:
            # others may have variables of this prefix, such as the links of a container platform
            near = _nearest(variable, [*names, *OTHER_VARIABLES])
            if near:
                raise ConfigError(f"there is no variable {_plain(variable)}; did you mean {near}?")
    found = EnvSettingsSource(Settings)()
    if _SERVICE_LINK.match(str(found.get("port", ""))):
        # the link that a container platform sets for a service called outlast
        del found["port"]
    return _Layer(found, {name: variable for variable, name in names.items() if name in found})


def _last_resort() -> _Layer:
    url = os.environ.get("DATABASE_URL")
    return _Layer({"dsn": url}, {"dsn": "DATABASE_URL"}) if url else _Layer({}, {})


def _file(named: Path | None) -> Path | None:
    variable = os.environ.get("OUTLAST_CONFIG")
    if named is None and not variable:
        path = Path(FILE_NAME)
        return path if path.is_file() else None
    path, who = (Path(variable or ""), "OUTLAST_CONFIG") if named is None else (named, "--config")
    if not path.is_file():
        raise ConfigError(f"there is no settings file {_plain(str(path))}, which {who} names")
    return path


def _of_file(path: Path) -> _Layer:
    name = _plain(str(path))
    try:
        with path.open("rb") as stream:
            raw = stream.read(_FILE_BYTES_MAX + 1)
        if len(raw) > _FILE_BYTES_MAX:
            raise ConfigError(f"{name} is larger than the {_FILE_BYTES_MAX} bytes that are read")
        text = raw.decode("utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8, which TOML is written in") from None
    except ValueError as error:  # also that of a number with too many digits
        raise ConfigError(f"{name} is not TOML: {_plain(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None
    places = {key: f"{name}{_line_of(key, text)}" for key in values}
    known = list(Settings.model_fields)
    for key, value in values.items():
        if key in known:
            continue
        what = "section" if isinstance(value, dict) else "key"
        near = _nearest(key, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        # a secret may stand in the place of a key
        shown = _plain(Masker().text(key).value)
        raise ConfigError(f"{places[key]}: there is no {what} {shown}; {hint}")
    return _Layer(values, places)


def _line_of(key: str, text: str) -> str:
    """Where a key of the first level stands, as `, line 3`; nothing if that is not certain."""
    begins = re.compile(rf"\s*(?:\[\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if begins.match(line):
            try:
                # inside a text of several lines what stands before it is not whole
                before = tomllib.loads("".join(lines[: number - 1]))
            except tomllib.TOMLDecodeError:
                continue
            return f", line {number}" if key not in before else ""
    return ""


def _nearest(name: str, known: Iterable[str]) -> str | None:
    wanted = name.lower().replace("-", "_").removeprefix(ENV_PREFIX.lower())[:100]
    choices = {one.lower().removeprefix(ENV_PREFIX.lower()): one for one in known}
    for choice, one in choices.items():
        if sorted(choice) == sorted(wanted):
            return one
    near = difflib.get_close_matches(wanted, choices, 1, _NEAR)
    return choices[near[0]] if near else None


def _plain(text: str) -> str:
    return neutral_text(text if len(text) <= _TEXT_CHARS_MAX else text[:_SHOWN_CHARS_MAX])
