"""Masking: what is a secret, what is not, and that nobody's text can make it slow or fail."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.policy.masking import DEPTH_MAX, MASK, SECRET_NAMES, Masker, luhn

MASKER = Masker()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=20,
)

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_every_listed_name_is_a_secret_in_every_spelling(name):
    words = name.replace("-", " ").split(" ")
    spellings = [
        name,
        name.upper(),
        "_".join(words),
        "-".join(words),
        "".join(words),
        words[0] + "".join(word.title() for word in words[1:]),
        "X-" + "-".join(word.title() for word in words),
        "old." + ".".join(words) + ".value",
    ]
    assert [s for s in spellings if not MASKER.is_secret(s)] == []


@pytest.mark.parametrize(
    "key",
    [
        *("accessToken", "APIKey", "DB_PASSWORD", "userPassword2", "Set-Cookie", "x-api-key"),
        *("Proxy-Authorization", "clientSecret", "card_number", "cardNumber", "JWTToken", "CVV"),
    ],
)
def test_keys_that_look_secret(key):
    assert MASKER.is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        *("tokenizer", "max_tokens", "secretary", "passwordless", "cookiecutter", "author"),
        *("isbn", "key", "api", "card", "number", "card type number", "", "---", "order_id"),
    ],
)
def test_keys_that_do_not(key):
    assert not MASKER.is_secret(key)


def test_the_list_is_configurable():
    masker = Masker(["shoe size", "", "--"])
    assert masker.value({"shoeSize": 44, "password": "p", "size": 1}) == (
        {"shoeSize": MASK, "password": "p", "size": 1},
        True,
    )
    assert not Masker([]).is_secret("password")


def test_values_under_secret_keys_whatever_they_are():
    body = {
        "order": 7,
        "auth": {"password": "p", "token": 12345, "apiKey": ["a", {"b": 1}], "cookie": {"a": 1}},
        "list": [{"cvv": "123"}, "plain"],
        "isbn": None,
        "secret": None,
        "price": -5,
        "ok": True,
        "rate": 0.5,
    }
    seen = MASKER.value(body)
    assert seen.masked
    assert seen.value == {
        **body,
        "auth": {"password": MASK, "token": MASK, "apiKey": MASK, "cookie": MASK},
        "list": [{"cvv": MASK}, "plain"],
    }
    assert body["auth"]["password"] == "p"


def test_a_value_without_secrets_is_given_back_equal():
    body = {"a": [1, 2.5, None, True, "text"], "b": {"c": "d"}, 5: "number key"}
    assert MASKER.value(body) == (body, False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer abc.def-1", f"Bearer {MASK}"),
        ("the bearer token abc", f"the bearer token {MASK}"),
        ("Basic QWxhZGRpbjpvcGVu", f"Basic {MASK}"),
        ("basic dXNlcjpwYXNzd29yZA==", f"basic {MASK}"),
        (f"sent {JWT}!", f"sent {MASK}!"),
        (f"key {PEM} end", f"key {MASK} end"),
        (PEM.replace("\n", "\\n"), MASK),
        ("-----BEGIN PRIVATE KEY-----\ncut off here", MASK),
        ("cut in front\nabc\n-----END PRIVATE KEY-----\nrest", f"{MASK}\nrest"),
        (f"abc\n-----END KEY-----\n{PEM} x", f"{MASK}\n{MASK} x"),
        ("postgres://app:hunter2@db:5432/x", f"postgres://{MASK}@db:5432/x"),
        ("postgres://app:p@ss/wo#rd@db/x", f"postgres://{MASK}@db/x"),
        ("https://ghtoken@github.com/a", f"https://{MASK}@github.com/a"),
        ("redis://:pw@h", f"redis://{MASK}@h"),
        ("card 4111111111111111.", f"card {MASK}."),
        ("4111 1111 1111 1111", MASK),
        ("4111-1111-1111-1111", MASK),
        ("3782 822463 10005", MASK),
        ("378282246310005", MASK),
        ("30569309025904", MASK),
        ("in 2024 4111 1111 1111 1111 123", f"in 2024 {MASK} 123"),
        ("1,4111111111111111,x", f"1,{MASK},x"),
        ("ghp_" + "a" * 36, MASK),
        ("AKIAIOSFODNN7EXAMPLE", MASK),
        ("/api/dlq/outlast_" + "a-_4" * 10, f"/api/dlq/{MASK}"),
    ],
)
def test_texts_that_look_like_a_secret(text, shown):
    assert MASKER.text(text) == (shown, True)
    assert MASKER.value([text]) == ([shown], True)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'isbn'",
        "4111111111111112",
        "order 1234567890123456 at 2026-11-19 10:00:00 2026-11-20",
        "1763546400000000",
        "0.4111111111111111",
        "41111111111111111111111",
        "http://host:8080/path?mail=a@b.example",
        "https://host/a/@b",
        "mail a@b.example",
        "basic authentication required",
        "Basic usage",
        "Token expired at: 10:00",
        "passwordless: yes",
        "eyJ is how it begins",
        'File "a.py", line 3, in check_password',
        MASK,
    ],
)
def test_texts_that_do_not(text):
    assert MASKER.text(text) == (text, False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2, user=x", f"password={MASK}, user=x"),
        ("got {'password': 'hun ter2', 'a': 1}", f"got {{'password': '{MASK}', 'a': 1}}"),
        (r'{"password": "x\"y z", "b": 2}', f'{{"password": "{MASK}", "b": 2}}'),
        (r'"{\"token\": \"a b\", \"c\": 1}"', rf'"{{\"token\": \"{MASK}\", \"c\": 1}}"'),
        ("api key: s-12 rest", f"api key: {MASK} rest"),
        ("--token=abc --n=1", f"--token={MASK} --n=1"),
        ("?token=abc&x=1", f"?token={MASK}&x=1"),
        ("Authorization: Digest a=b, c=d\nHost: h", f"Authorization: {MASK}\nHost: h"),
        ("Cookie: a=b; c=d\r\nHost: h", f"Cookie: {MASK}\r\nHost: h"),
        ("token: Bearer a.b rest", f"token: {MASK} rest"),
        ("password={'a': [1, (2)]} z=1", f"password={MASK} z=1"),
        ("password=[1, 2", f"password={MASK}"),
        ("password='never closed and on", f"password='{MASK}"),
        ("message=password=abc", f"message=password={MASK}"),
        ("os.environ['DB_PASSWORD'] = 'x y'", f"os.environ['DB_PASSWORD'] = '{MASK}'"),
        ("secret=b'ab c' x", f"secret={MASK} x"),
        ("host=h password=pw dbname=d", f"host=h password={MASK} dbname=d"),
        ("password := 'a b'", f"password := '{MASK}'"),
    ],
)
def test_names_and_values_in_free_text(text, shown):
    assert MASKER.text(text) == (shown, True)


def test_masked_json_in_a_text_is_still_json():
    text = json.dumps({"a": {"password": 'q"\\', "n": 1}, "token": "t"})
    assert json.loads(MASKER.text(text).value) == {"a": {"password": MASK, "n": 1}, "token": MASK}


def test_a_secret_of_the_body_does_not_come_back_in_the_error():
    body = {"user": {"password": "hunter2!"}, "token": ["abcdef", 5], "name": "visible"}
    secrets = MASKER.secrets(body, {"Authorization": "xyz-123"}, None)
    assert secrets == {"hunter2!", "abcdef", "xyz-123"}
    told = MASKER.text("ValueError: hunter2! and xyz-123 of visible", secrets=secrets)
    assert told == (f"ValueError: {MASK} and {MASK} of visible", True)


def test_what_is_remembered_of_a_body_is_bounded():
    body = [{"password": f"secret-{n}"} for n in range(1000)]
    assert len(MASKER.secrets(body)) == 100
    assert MASKER.secrets({"password": "12345", "token": "x" * 1025}) == frozenset()


def test_numbers_can_be_cards():
    assert MASKER.value([4111111111111111, 4111111111111112, 10**5000]) == (
        [MASK, 4111111111111112, 10**5000],
        True,
    )


def test_keys_can_be_secrets_themselves():
    seen = MASKER.value({"4111111111111111": 1, "5500000000000004": 2, "a": 3})
    assert seen == ({MASK: 1, f"{MASK} (2)": 2, "a": 3}, True)


def test_depth_is_bounded():
    deep = "bottom"
    for _ in range(100_000):
        deep = [deep]
    seen = MASKER.value(deep)
    assert seen.masked
    assert json.dumps(seen.value, ensure_ascii=False).count("[") == DEPTH_MAX
    assert MASKER.secrets(deep) == frozenset()


def test_what_is_no_json_is_shown_as_text():
    class Odd:
        def __str__(self):
            return "password=abc"

    assert MASKER.value({"a": Odd()}) == ({"a": f"password={MASK}"}, True)


def test_the_check_digit():
    assert luhn("4111111111111111")
    assert not luhn("4111111111111112")


@settings(deadline=None, max_examples=100)
@given(JSON)
def test_masking_twice_changes_nothing_more(value):
    once = MASKER.value(value)
    again = MASKER.value(once.value)
    assert again.value == once.value
    assert once.masked == (json.dumps(once.value) != json.dumps(value))


@settings(deadline=None, max_examples=100)
@given(
    st.text(st.sampled_from("abcXYZ019!#-_ "), min_size=6, max_size=20).map("canary-".__add__),
    st.sampled_from(["password", "api_key", "Authorization", "setCookie", "cardNumber"]),
    st.text(max_size=20),
)
def test_a_canary_under_a_secret_key_is_never_seen(canary, key, noise):
    body = {"noise": noise, "user": [{key: canary}]}
    assert canary not in str(MASKER.value(body).value)
    for text in (
        json.dumps(body),
        repr(body),
        f"ValueError({body!r})",
        f"{noise}\n{key}: '{canary}'",
    ):
        assert canary not in MASKER.text(text).value


def spent(text):
    start = time.process_time()
    MASKER.text(text)
    return time.process_time() - start


@pytest.mark.parametrize(
    "piece",
    [
        *("://a:b", "eyJ-", 'password=\\"', '"\\', "password=(", "password='", "4111 ", "basic "),
        *(
            "a ",
            "bearer ",
            "-----BEGIN A-----",
            'password="\n',
            "x",
            "a.",
            "password=x ",
            "@",
            ":=",
        ),
        *("password = ", "token\\\\", "https://u@", "5500-", "Bearer: ", "[{(", "password:'\\'"),
    ],
)
def test_work_is_linear(piece):
    """CPU seconds of a text and of one eight times as long: quadratic work would take 64 times."""
    short, long = (piece * (size // len(piece)) for size in (15_000, 120_000))
    spent(short)
    assert spent(long) < 24 * max(spent(short), 0.004)
