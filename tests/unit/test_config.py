"""Settings: one schema, four sources, and errors that say where a value came from."""

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from outlast import config
from outlast.config import OTHER_VARIABLES, ConfigError, Settings, load_settings
from outlast.policy.masking import SECRET_NAMES
from tools import settings_reference

SRC = Path(config.__file__).parent
PASSWORD = "hunter2-hunter2"
LINE = f"ci:inspect:sha256:{'ab' * 32}"


@pytest.fixture(autouse=True)
def empty_place(monkeypatch, tmp_path):
    """No settings of this machine: an empty folder, no variables."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("OUTLAST_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def file(empty_place):
    def write(text, name="outlast.toml"):
        path = empty_place / name
        path.write_text(text, "utf-8")
        return path

    return write


def refusal(*arguments, **given):
    with pytest.raises(ConfigError) as refused:
        load_settings(*arguments, **given)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return str(refused.value)


# -- sources


def test_the_nearest_source_wins(file, monkeypatch):
    """Arguments before environment before file before defaults, key by key."""
    assert load_settings().table == "outbox"
    file('table = "of_file"\ndlq_table = "of_file"\nhost = "of.file"\n')
    monkeypatch.setenv("OUTLAST_TABLE", "of_env")
    monkeypatch.setenv("OUTLAST_DLQ_TABLE", "of_env")
    read = load_settings(table="of_option")
    assert (read.table, read.dlq_table, read.host, read.port) == (
        "of_option",
        "of_env",
        "of.file",
        8787,
    )


def test_database_url_is_the_last_resort(file, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://last/one")
    assert load_settings().dsn == "postgresql://last/one"
    file('dsn = "of_file.db"')
    assert load_settings().dsn == "of_file.db"
    monkeypatch.setenv("OUTLAST_DSN", "of_env.db")
    assert load_settings().dsn == "of_env.db"
    assert load_settings(dsn="of_option.db").dsn == "of_option.db"


def test_what_is_empty_says_nothing(file, monkeypatch):
    file('table = "of_file"\ndsn = "x.db"')
    monkeypatch.setenv("OUTLAST_TABLE", "")
    monkeypatch.setenv("OUTLAST_DSN", "")
    monkeypatch.setenv("OUTLAST_CONFIG", "")
    read = load_settings(table="", dsn=None, transforms=(), origins=[])
    assert (read.table, read.dsn, read.transforms) == ("of_file", "x.db", ())
    # but a falsehood says something
    file("require_reason = true")
    assert load_settings().require_reason
    assert not load_settings(require_reason=False).require_reason


def test_the_file_is_the_one_that_is_named(file, monkeypatch):
    file('table = "here"')
    by_option, by_variable = file('table = "a"', "a.toml"), file('table = "b"', "b.toml")
    assert load_settings().table == "here"
    monkeypatch.setenv("OUTLAST_CONFIG", str(by_variable))
    assert load_settings().table == "b"
    assert load_settings(by_option).table == "a"


def test_a_named_file_must_be_there(empty_place, monkeypatch):
    assert refusal(Path("no.toml")) == "there is no settings file no.toml, which --config names"
    assert "which --config names" in refusal(empty_place)  # a folder
    monkeypatch.setenv("OUTLAST_CONFIG", "gone.toml")
    assert refusal() == "there is no settings file gone.toml, which OUTLAST_CONFIG names"


# -- values


def test_every_source_speaks_its_own_tongue(file, monkeypatch):
    expected = {
        "tokens": (LINE, LINE.replace("ci", "cd")),
        "origins": ("https://a.example", "http://b.example:8080"),
        "secret_names": ("customer-code", "pin"),
        "transforms": ("shop.mend:price", "shop.mend:isbn"),
        "keep_discarded": timedelta(days=1, hours=12),
        "require_reason": True,
        "port": 9000,
        "replays_max": 5,
    }
    lines = {
        "tokens": "\n".join(expected["tokens"]) + "\n",
        "origins": "https://A.example/  http://b.example:8080",
        "secret_names": "customer-code pin",
        "transforms": "shop.mend:price shop.mend:isbn",
        "keep_discarded": "1d12h",
        "require_reason": "yes",
        "port": "9000",
        "replays_max": "5",
    }
    for name, text in lines.items():
        monkeypatch.setenv(f"OUTLAST_{name.upper()}", text)
    read = load_settings()
    assert {name: getattr(read, name) for name in expected} == expected
    for name in lines:
        monkeypatch.delenv(f"OUTLAST_{name.upper()}")

    file(
        f'tokens = ["{LINE}", "{LINE.replace("ci", "cd")}"]\n'
        'origins = ["https://a.example", "http://b.example:8080"]\n'
        'secret_names = ["customer-code", "pin"]\n'
        'transforms = ["shop.mend:price", "shop.mend:isbn"]\n'
        'keep_discarded = "36h"\nrequire_reason = true\nport = 9000\nreplays_max = 5\n'
    )
    read = load_settings()
    assert {name: getattr(read, name) for name in expected} == expected


def test_a_dsn_from_a_file_of_variables_may_end_in_a_line_feed(monkeypatch):
    monkeypatch.setenv("OUTLAST_DSN", " postgresql://u@h/d\n")
    assert load_settings().dsn == "postgresql://u@h/d"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("port", value) for value in ("-1", "65536", "8.5", '"web"', "true", "[1]", "{a = 1}")),
        ("port", f"0x{'f' * 5000}"),
        *(("replays_max", value) for value in ("0", "1001", "true", "nan", '"many"')),
        *(("keep_discarded", value) for value in ("7", '"7"', '"7y"', '"0d"', '"40000d"', '"-1d"')),
        *(("keep_discarded", value) for value in ('"9' + "9" * 400 + 'd"', '"7 d"', "true")),
        *(("require_reason", value) for value in ('"perhaps"', "2", "[]", "1979-05-27")),
        *(("table", value) for value in ("1", '""', '" "', r'"a\u0000b"', r'"a\nb"', "[]")),
        *(("host", value) for value in ('""', "1")),
        *(("prefix", value) for value in ('"x"', '"//x"', '"/x y"', '"/\\u00fc"', "1")),
        *(("origins", value) for value in ('["*"]', '"a.example"', '["https://a/b"]', "[1]", "1")),
        *(("app", value) for value in ('"module"', '"a:b:c"', '"a b:c"', '"../a:b"', '"1a:b"')),
        *(("transforms", value) for value in ('["a"]', "[1]", '["os; x:y"]', '{a = "b:c"}')),
        *(("secret_names", value) for value in ("1", "[1]", '[""]', "[[]]")),
        *(("tokens", value) for value in ("1", "[1]", "{a = 1}")),
    ],
)
def test_a_wrong_value_is_refused_where_it_stands(file, key, value):
    file(f"# mine\n\n{key} = {value}\n")
    said = refusal()
    assert said.startswith(f"outlast.toml, line 3: {key} cannot be ")
    assert said.endswith(Settings.model_fields[key].json_schema_extra["allowed"])
    assert said.isprintable()
    assert len(said) < 300


def test_a_wrong_value_is_told_with_its_variable_or_option(monkeypatch):
    monkeypatch.setenv("OUTLAST_REPLAYS_MAX", "many")
    assert refusal() == (
        "OUTLAST_REPLAYS_MAX: replays_max cannot be 'many': it takes a whole number from 1 to 1000"
    )
    assert refusal(replays_max=0).startswith("option --replays-max: replays_max cannot be 0:")


def test_a_list_has_a_limit(monkeypatch):
    names = [f"n{i}" for i in range(1000)]
    assert load_settings(secret_names=names).secret_names == tuple(names)
    assert "secret_names cannot be" in refusal(secret_names=[*names, "one"])


# -- names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('tabel = "x"', "line 1: there is no key tabel; did you mean table?"),
        ('\n\ndlq-table = "x"', "line 3: there is no key dlq-table; did you mean dlq_table?"),
        ("DNS = 1", "line 1: there is no key DNS; did you mean dsn?"),
        ("outlast_dsn = 1", "line 1: there is no key outlast_dsn; did you mean dsn?"),
        ("[desk]\ntable = 'x'", "line 1: there is no section desk; there are dsn, table,"),
        ("table = 'x'\n[ alerts ]\na = 1", "line 2: there is no section alerts; there are"),
        ("alerts.depth = 1", "line 1: there is no section alerts; there are"),
        ('"to\\u001bkens" = 1', "outlast.toml: there is no key to\\x1bkens; did you mean tokens?"),
        ('app = "a:b"\n"hosts" = 1', "line 2: there is no key hosts; did you mean host?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_and_its_line(file, text, said):
    file(text)
    assert said in refusal()


def test_a_line_of_a_text_is_not_taken_for_the_key(file):
    file('host = """\nprot = 1\n"""\nprot = 2\n')
    assert "outlast.toml, line 4: there is no key prot; did you mean port?" in refusal()


def test_a_variable_that_is_nearly_one_is_refused(monkeypatch):
    for wrong, meant in {
        "OUTLAST_TABEL": "OUTLAST_TABLE",
        "OUTLAST_DNS": "OUTLAST_DSN",
        "OUTLAST_TOKEN": "OUTLAST_TOKENS",
        "OUTLAST_ORIGIN": "OUTLAST_ORIGINS",
        "OUTLAST_DLQTABLE": "OUTLAST_DLQ_TABLE",
        "OUTLAST_DATABASE_URL": "DATABASE_URL",
        "OUTLAST_CONFG": "OUTLAST_CONFIG",
    }.items():
        monkeypatch.setenv(wrong, "x")
        assert refusal() == f"there is no variable {wrong}; did you mean {meant}?"
        monkeypatch.delenv(wrong)


def test_the_variables_of_others_are_let_alone(monkeypatch):
    """A service called outlast: the platform sets links, one of them by the name of a setting."""
    for name, value in {
        "OUTLAST_PORT": "tcp://10.43.0.7:8787",
        "OUTLAST_SERVICE_HOST": "10.43.0.7",
        "OUTLAST_SERVICE_PORT": "8787",
        "OUTLAST_SERVICE_PORT_HTTP": "8787",
        "OUTLAST_PORT_8787_TCP": "tcp://10.43.0.7:8787",
        "OUTLAST_PORT_8787_TCP_PROTO": "tcp",
        "OUTLAST_PORT_8787_TCP_PORT": "8787",
        "OUTLAST_PORT_8787_TCP_ADDR": "10.43.0.7",
        "OUTLAST_IMAGE_TAG": "1.2.3",
        "OUTLAST_ACTOR": "ann",
        "OUTLAST_TRACEBACK": "1",
        "OUTLAST_TEST_POSTGRES": "x",
    }.items():
        monkeypatch.setenv(name, value)
    assert load_settings().port == 8787
    monkeypatch.setenv("OUTLAST_PORT", "tcp")
    assert refusal().startswith("OUTLAST_PORT: port cannot be 'tcp'")


def test_an_unknown_option_is_a_mistake_of_ours():
    with pytest.raises(TypeError, match="there is no setting tabel"):
        load_settings(tabel="x")


# -- the file itself


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"table = ", "outlast.toml is not TOML: Invalid value (at end of document)"),
        (b"a = 1\na = 2", "outlast.toml is not TOML"),
        (b"\xff\xfe", "outlast.toml is not UTF-8"),
        (b"x = " + b"[" * 50_000, "outlast.toml is nested too deeply"),
        (b"port = " + b"1" * 5000, "outlast.toml is not TOML: Exceeds the limit"),
        (b"#" * (1024 * 1024 + 1), "outlast.toml is larger than the 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(empty_place, raw, said):
    (empty_place / "outlast.toml").write_bytes(raw)
    assert refusal().startswith(said)


def test_a_file_may_begin_with_a_byte_order_mark(empty_place):
    (empty_place / "outlast.toml").write_bytes(b"\xef\xbb\xbftable = 'x'\r\n")
    assert load_settings().table == "x"


def test_a_file_of_somebody_else_is_a_sentence(file, monkeypatch):
    file("")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal() == "outlast.toml cannot be read: Permission denied"


# -- secrets


@pytest.mark.parametrize("place", ["file", "variable", "option"])
@pytest.mark.parametrize("key", ["dsn", "tokens", "app", "table", "port", "transforms"])
def test_a_secret_reaches_no_error(file, monkeypatch, place, key):
    """Neither in its own place nor in that of another key, nor beside a wrong one."""
    bad = f"postgresql://ann:{PASSWORD}@db\x07/shop"
    given = {}
    if place == "file":
        file(f"{key} = {json.dumps([[bad]])}")
    elif place == "variable":
        monkeypatch.setenv(f"OUTLAST_{key.upper()}", bad)
    else:
        given = {key: [bad, 1]}
    said = refusal(**given)
    assert key in said
    assert PASSWORD not in said


def test_a_secret_in_the_place_of_a_key_is_not_shown(file):
    file(f'"postgresql://ann:{PASSWORD}@db/shop" = 1')
    said = refusal()
    assert "there is no key postgresql://" in said
    assert PASSWORD not in said


def test_a_good_secret_is_not_shown_beside_a_wrong_value(file):
    file(f'dsn = "postgresql://ann:{PASSWORD}@db/shop"\ntokens = "{LINE}"\nport = -1')
    with pytest.raises(ConfigError) as refused:
        load_settings()
    assert PASSWORD not in repr(refused.value)
    assert LINE not in repr(refused.value)


def test_no_repr_shows_a_secret(file):
    file(f'dsn = "postgresql://ann:{PASSWORD}@db/shop"\ntokens = "{LINE}"')
    read = load_settings()
    assert PASSWORD in read.dsn
    for shown in (repr(read), str(read), f"{read}"):
        assert PASSWORD not in shown
        assert LINE not in shown


# -- what it is for


def test_the_options_of_a_desk(file):
    """S4-107, U-13: require_reason is a setting; gates and masking are, too."""
    file(
        "require_reason = true\nreplays_max = 7\nkeep_discarded = '90s'\nkeep_resolved = true\n"
        "secret_names = ['customer code']"
    )

    def body_test(_letter, _queue):
        return "unknown"

    options = load_settings().desk_options(body_test)
    assert options.require_reason
    assert options.keep_resolved
    assert options.replays_max == 7
    assert options.keep_discarded_seconds == 90.0
    assert options.secret_names == (*SECRET_NAMES, "customer code")
    assert options.body_test is body_test


def test_defaults_are_those_of_the_desk():
    from outlast.ops import DeskOptions

    assert load_settings().desk_options() == DeskOptions()


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        load_settings().table = "x"


# -- the reference


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name):
    """An option without its texts fails here (S2-70), and on the generated page."""
    field = Settings.model_fields[name]
    assert len(field.description or "") > 15
    assert (field.description or "").endswith(".")
    assert field.json_schema_extra["allowed"]
    row = next(
        line for line in settings_reference.page().splitlines() if line.startswith(f"| `{name}` |")
    )
    assert f"`OUTLAST_{name.upper()}`" in row
    assert field.description in row
    assert row.count(" | ") == 5


def test_every_variable_that_is_read_is_documented():
    known = {f"OUTLAST_{name.upper()}" for name in Settings.model_fields} | {*OTHER_VARIABLES}
    read = {
        (name, path.name)
        for path in SRC.rglob("*.py")
        for name in re.findall(r"\b(OUTLAST_[A-Z_]+[A-Z]|DATABASE_URL)\b", path.read_text("utf-8"))
    }
    assert not [place for place in read if place[0] not in known]
    assert {name for name, _ in read} >= {"OUTLAST_CONFIG", "OUTLAST_ACTOR", "DATABASE_URL"}


def test_reading_settings_loads_no_database_and_no_framework():
    """Whoever starts a verb pays for pydantic and nothing else."""
    program = (
        "import sys, outlast.config as c; c.load_settings(); "
        "print(*sorted({n.partition('.')[0] for n in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "pydantic_settings" in loaded
    assert not loaded & {"sqlalchemy", "faststream", "asyncpg", "aiosqlite", "fastapi", "typer"}
