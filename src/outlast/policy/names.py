"""What may be the name of a queue or a timer: checked alike by who publishes and who subscribes."""

NAME_CHARS_MAX = 255


def check_queue(queue: object) -> str:
    """The name of a queue, or the error that says what is wrong with it."""
    if not isinstance(queue, str):
        raise TypeError(f"queue must be a str, got {queue!r} ({type(queue).__name__})")
    if not queue:
        raise ValueError("queue must be non-empty")
    return check_name("queue", queue)


def check_name(field: str, value: object) -> str:
    """A name that every database stores, `field` being what it names."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a str, got {value!r} ({type(value).__name__})")
    if len(value) > NAME_CHARS_MAX:
        raise ValueError(f"{field} must have at most {NAME_CHARS_MAX} characters, got {len(value)}")
    if "\x00" in value:
        raise ValueError(f"{field} must not contain a NUL character, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field} must not contain a lone surrogate, got {value!r}") from None
    return value
