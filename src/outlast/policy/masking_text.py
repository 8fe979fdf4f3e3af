"""Free text without the secrets in it: error messages, tracebacks, header values.

In: text, and the test for keys. Out: text. Each pass is linear in the text, whoever wrote it; where
the end of a secret cannot be found, the rest of the text goes. Called by `policy.masking` only.
"""

import re
from collections.abc import Callable

MASK = "•••"

_PEM = re.compile(r"-----BEGIN [^\n-]{0,64}-----")
_PEM_END = re.compile(r"-----END [^\n-]{0,64}-----")

# the first form is for passwords with a slash in them; it must not take a port for one
_URL = re.compile(
    r"(?<=://)(?:[^\s/:@\"'<>]{0,128}:(?![0-9]{1,5}(?:[/?#]|$))[^\s\"'<>]{1,256}|[^\s/?#\"'<>]+)@"
)
_BEARER = re.compile(
    r"(?<![\w-])(bearer(?:[ \t]+token)?[ \t:=]+)(?!•)[\w.~+/=-]+", re.IGNORECASE | re.ASCII
)
# a word of plain letters after "basic" is prose
_BASIC = re.compile(
    r"(?<![\w-])((?i:basic)[ \t]+)(?=[A-Za-z/]*(?:[0-9+=]|[a-z][A-Z]))[A-Za-z0-9+/]{6,}+={0,2}"
)
_TOKEN = re.compile(
    r"(?<![\w-])(?:eyJ[\w-]{5,}+\.[\w-]++(?:\.[\w-]*+)?"  # a JSON web token
    r"|gh[pousr]_[A-Za-z0-9]{20,}+|github_pat_\w{20,}+|xox[abeprs]-[\w-]{10,}+"
    r"|[sr]k_(?:live|test)_\w{10,}+|AKIA[0-9A-Z]{16}(?!\w)"
    r"|outlast_[\w-]{40,}+)",  # a token of our own
    re.ASCII,
)
_BETWEEN = r"[ \u00a0._-]?"
# 3 to 6 are the payment cards, 2 the newer ones of the same networks; a fraction is no card
_CARD_START = re.compile(r"(?<![0-9])(?<![0-9]\.)(?=[2-6][0-9]{3})")
_CARD_SHAPES = tuple(
    re.compile(_BETWEEN.join(f"[0-9]{{{size}}}" for size in sizes) + "(?![0-9])")
    for sizes in (
        *((4, 4, 4, 4), (4, 6, 5), (4, 6, 4)),
        *(
            (4, 4, 4, 4, 3),
            (4, 4, 4, 4, 2),
            (4, 4, 4, 4, 1),
            (4, 4, 4, 3),
            (4, 4, 4, 2),
            (4, 4, 4, 1),
        ),
    )
)

# up to three words before `:` or `=`: "api key: …", "\"password\": …", "--token=…"
_KEY = re.compile(
    r"(?<![\w.-])([\w.-]++(?:[ ][\w.-]++){0,2}+)\\{0,3}[\"']?\]?\s{0,8}(?::=|=>|={1,2}|:)[ \t]{0,8}"
)
_KEY_CHARS = 256
_SCHEME = re.compile(r"(?:bearer|basic|token|digest|apikey|negotiate)[ \t]+(?=\S)", re.IGNORECASE)
_OPENING_QUOTE = re.compile(r"(?:[A-Za-z]{0,2}|[\w.]{1,64}\()(\\{0,3}[\"'])")
_LINE = re.compile(r"[^\r\n]*")
_RUN = re.compile(r"[^\s,;&)}\]]*")
_OPEN, _CLOSE = "([{", ")]}"
_TO_THE_END = ("authorization", "cookie")


def luhn(digits: str) -> bool:
    """The check digit of card numbers."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        number = int(digit) * (2 if place % 2 else 1)
        total += number - 9 if number > 9 else number  # noqa: PLR2004
    return total % 10 == 0


def _without_cards(text: str) -> str:
    parts: list[str] = []
    done = position = 0
    while (start := _CARD_START.search(text, position)) is not None:
        position = start.end() + 1
        for shape in _CARD_SHAPES:
            found = shape.match(text, start.end())
            if found is not None and luhn(re.sub(r"[^0-9]", "", found.group())):
                parts += [text[done : found.start()], MASK]
                done = position = found.end()
                break
    parts.append(text[done:])
    return "".join(parts)


def _without_pem(text: str) -> str:
    parts: list[str] = []
    position = 0
    first, end = _PEM.search(text), _PEM_END.search(text)
    if end is not None and (first is None or end.start() < first.start()):
        # a trace is cut from the front: its block may have lost the beginning
        parts.append(MASK)
        position = end.end()
    while (begin := _PEM.search(text, position)) is not None:
        end = _PEM_END.search(text, begin.end())
        parts += [text[position : begin.start()], MASK]
        position = end.end() if end else len(text)
    parts.append(text[position:])
    return "".join(parts)


def _value_end(text: str, start: int, key: str) -> int:
    """Where the value that begins here ends."""
    quote = _OPENING_QUOTE.match(text, start)
    if quote is not None:
        return _closing_quote(text, quote)
    if any(name in key for name in _TO_THE_END):
        found = _LINE.match(text, start)
    elif text[start : start + 1] in _OPEN and start < len(text):
        return _closing_bracket(text, start)
    else:
        scheme = _SCHEME.match(text, start)
        found = _RUN.match(text, scheme.end() if scheme else start)
    return found.end() if found else start


def _closing_quote(text: str, opening: re.Match[str]) -> int:
    mark, position = opening.group(1), opening.end()
    if len(mark) > 1:  # quoted inside a quoted text: ends at the same sequence
        end = text.find(mark, position)
        return len(text) if end < 0 else end + len(mark)
    while position < len(text):
        if text[position] == mark:
            return position + 1
        position += 2 if text[position] == "\\" else 1
    return len(text)


def _closing_bracket(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in _OPEN) - (text[position] in _CLOSE)
        if depth == 0:
            return position + 1
    return len(text)


def _ends_secret(phrase: str, is_secret: Callable[[str], bool]) -> bool:
    """Whether the words right before the value name a secret: "api key", not "token used at"."""
    words = phrase.split(" ")
    for start in range(len(words) - 1, -1, -1):
        before = " ".join(words[start:-1])
        if is_secret(" ".join(words[start:])) and not (before and is_secret(before)):
            return True
    return False


def _without_keyed(text: str, is_secret: Callable[[str], bool]) -> str:
    parts: list[str] = []
    done = position = 0
    while (found := _KEY.search(text, position)) is not None:
        position = found.end()
        key = found.group(1)[-_KEY_CHARS:]
        if not _ends_secret(key, is_secret):
            continue
        end = _value_end(text, position, key.lower())
        if end == position:
            continue
        value = text[position:end]
        opening = _OPENING_QUOTE.match(value)
        quote = opening.group(1) if opening and value.startswith(opening.group(1)) else ""
        closing = quote if len(value) > len(quote) and value.endswith(quote) else ""
        # quotes stay where they were, so that JSON remains JSON
        parts += [text[done:position], quote, MASK, closing]
        done = position = end
    parts.append(text[done:])
    return "".join(parts)


def masked_text(text: str, is_secret: Callable[[str], bool]) -> str:
    """The text with everything that looks like a secret replaced."""
    if "-----BEGIN " in text or "-----END " in text:
        text = _without_pem(text)
    if "://" in text:
        text = _URL.sub(f"{MASK}@", text)
    if ":" in text or "=" in text:
        text = _without_keyed(text, is_secret)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _BASIC.sub(rf"\1{MASK}", text)
    text = _TOKEN.sub(MASK, text)
    return _without_cards(text)
