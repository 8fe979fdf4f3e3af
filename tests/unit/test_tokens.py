"""Tokens: the secret is shown once, the line knows it again, and no error repeats either."""

import hashlib
import hmac

import pytest

from outlast.ops import BadRequest
from outlast.ops.tokens import NAME_CHARS_MAX, TOKENS_MAX, TokenBook, new_token

DIGEST = "ab" * 32
SECRET = "outlast_Zx81secretsecretsecretsecretsecretsecret01"


def line(name="ci", scopes="inspect", digest=DIGEST):
    return f"{name}:{scopes}:sha256:{digest}"


def test_a_new_token_is_known_again_by_its_line():
    """U-16: scopes beyond read and write travel with the token; its name is the actor."""
    made = new_token("ci", ["replay", "inspect", "reveal"])
    book = TokenBook.parse(made.line)
    actor = book.actor_of(made.secret)
    assert actor is not None
    assert (actor.name, actor.scopes) == ("ci", {"inspect", "replay", "reveal"})
    assert made.as_json() == {"token": made.secret, "line": made.line}
    assert made.line.startswith("ci:inspect,replay,reveal:sha256:")
    assert len(made.line.split()) == 1


def test_a_secret_has_32_random_bytes_and_a_prefix():
    made = {new_token("n", ["inspect"]).secret for _ in range(200)}
    assert len(made) == 200
    for secret in made:
        assert secret.startswith("outlast_")
        assert len(secret) == len("outlast_") + 43  # 32 bytes in base64


def test_neither_secret_nor_hash_shows_where_it_is_not_asked_for():
    made = new_token("ci", ["inspect"])
    book = TokenBook.parse(made.line)
    digest = hashlib.sha256(made.secret.encode()).hexdigest()
    for shown in (repr(made), repr(book), repr(book.entries), repr(vars(book))):
        assert made.secret not in shown
        assert digest not in shown
    assert digest in made.line
    assert made.secret not in made.line
    (entry,) = book.entries
    assert entry.as_json() == {"name": "ci", "scopes": ["inspect"]}


@pytest.mark.parametrize(
    "wrong", ["", "x", "outlast_", "outlast_" + "a" * 43, "ü" * 20, "a" * 100_000, "\ud800", "\x00"]
)
def test_a_wrong_secret_is_nobody(wrong):
    book = TokenBook.parse(new_token("ci", ["admin"]).line)
    assert book.actor_of(wrong) is None
    assert TokenBook.parse("").actor_of(wrong) is None


def test_the_hash_or_the_line_itself_opens_nothing():
    made = new_token("ci", ["admin"])
    book = TokenBook.parse(made.line)
    assert book.actor_of(made.line) is None
    assert book.actor_of(made.line.rpartition(":")[2]) is None
    assert book.actor_of(made.secret.upper()) is None
    assert book.actor_of(made.secret + " ") is None


def test_every_entry_is_compared_in_constant_time(monkeypatch):
    """Neither whether a secret is known nor where it stands shows in the work that is done."""
    compared = []
    real = hmac.compare_digest

    def counting(one, other):
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    made = [new_token(f"n{i}", ["inspect"]) for i in range(5)]
    book = TokenBook.parse([one.line for one in made])
    for secret in (made[0].secret, made[4].secret, "unknown"):
        compared.clear()
        book.actor_of(secret)
        assert compared == [(32, 32)] * 5


def test_lines_come_as_text_or_one_by_one():
    made = [new_token(f"n{i}", ["inspect"]) for i in range(3)]
    texts = [one.line for one in made]
    for lines in (
        texts,
        " ".join(texts),
        "\n".join(texts) + "\n",
        [f"{texts[0]}\t{texts[1]}", texts[2]],
    ):
        book = TokenBook.parse(lines)
        assert [entry.name for entry in book.entries] == ["n0", "n1", "n2"]
        assert [book.actor_of(one.secret).name for one in made] == ["n0", "n1", "n2"]
    assert len(TokenBook.parse(" \n ")) == 0


def test_scopes_of_other_systems_are_understood_in_a_line():
    book = TokenBook.parse(line(scopes="dlq:read,dlts:update"))
    assert book.entries[0].scopes == ("inspect", "replay")


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("nonsense", "is not name:scope,scope:sha256:digest"),
        (f"ci:inspect:{DIGEST}", "is not name:scope"),
        (f"ci:inspect:md5:{DIGEST}", "not called sha256"),
        (line(digest="ab"), "64 hexadecimal digits"),
        (line(digest=DIGEST[:-1] + "g"), "64 hexadecimal digits"),
        (line(digest=DIGEST.upper()), "64 hexadecimal digits"),
        (line(scopes="everything"), "a scope that is none; there are admin, discard"),
        (line(scopes=""), "a scope that is none"),
        (line(scopes="inspect,"), "a scope that is none"),
        (line(name=""), "a name that is empty"),
        (line(name="a" * 101), "100 are kept"),
        (line(name="a\x1bb"), "a control character"),
        (line(name="a=b"), "a control character"),
        ("x" * 5000, "1000 are read"),
    ],
)
def test_a_malformed_line_is_refused_by_its_number_without_being_repeated(bad, problem):
    with pytest.raises(BadRequest) as refused:
        TokenBook.parse([line("good", digest="cd" * 32), bad])
    said = f"{refused.value} {refused.value.remedy}"
    assert str(refused.value).startswith("token line 2 ")
    assert problem in said
    assert "outlast tokens new" in said
    assert bad not in said
    assert DIGEST not in said


@pytest.mark.parametrize(
    "bad",
    [SECRET, f"ci:inspect:{SECRET}", f"ci:{SECRET}:sha256:{DIGEST}", f"ci:inspect:sha256:{SECRET}"],
)
def test_a_raw_secret_in_the_configuration_is_called_what_it_is(bad):
    with pytest.raises(BadRequest) as refused:
        TokenBook.parse(bad)
    said = f"{refused.value} {refused.value.remedy}"
    assert "token line 1 looks like a secret itself" in said
    assert "make a new one" in said
    assert "Zx81" not in said


def test_a_secret_of_another_kind_in_the_place_of_a_scope_is_not_repeated():
    with pytest.raises(BadRequest) as refused:
        TokenBook.parse(line(scopes="hunter2hunter2"))
    assert "hunter2" not in f"{refused.value} {refused.value.remedy} {refused.value.__cause__}"


def test_a_name_and_a_hash_stand_once_in_a_book():
    other = "cd" * 32
    with pytest.raises(BadRequest, match="token line 2 has the name of line 1"):
        TokenBook.parse([line(), line(digest=other)])
    with pytest.raises(BadRequest, match="token line 3 has the hash of line 1"):
        TokenBook.parse([line(), line("b", digest=other), line("c")])


def test_a_book_has_a_limit():
    lines = [line(f"n{i}", digest=f"{i:064x}") for i in range(TOKENS_MAX + 1)]
    assert len(TokenBook.parse(lines[:-1])) == TOKENS_MAX
    with pytest.raises(BadRequest, match="1000 are read"):
        TokenBook.parse(lines)


@pytest.mark.parametrize(
    ("name", "scopes", "problem"),
    [
        ("", ["inspect"], "is empty"),
        ("a b", ["inspect"], "a blank"),
        ("a\nb", ["inspect"], "a blank"),
        ("a:b", ["inspect"], "a blank, a control character or one of"),
        ("a,b", ["inspect"], "one of"),
        (SECRET, ["inspect"], "looks like a secret"),
        ("\u202eb", ["inspect"], "control character"),
        ("a" * (NAME_CHARS_MAX + 1), ["inspect"], "100 are kept"),
        ("a", [], "without a scope"),
        ("a", ["everything"], "there is no scope"),
    ],
)
def test_what_a_token_cannot_be_made_of(name, scopes, problem):
    with pytest.raises(BadRequest, match=problem):
        new_token(name, scopes)


def test_a_name_may_begin_as_a_secret_does():
    made = new_token("outlast_ci", ["inspect"])
    assert TokenBook.parse(made.line).actor_of(made.secret).name == "outlast_ci"


def test_aliases_are_written_as_what_they_mean():
    assert new_token("a", ["dlq:read", "dlq:write"]).line.startswith("a:inspect,replay:sha256:")
