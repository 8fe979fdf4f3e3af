"""Identifiers derived from a table's name, and the check that a database keeps them whole.

In: a `Table` or its name. Out: names. PostgreSQL cuts an identifier after 63 bytes without a word,
so two tables could share a channel or an index name: too long a name is refused here.
"""

from sqlalchemy import Table

IDENTIFIER_BYTES_MAX = 63

CHANNEL_PREFIX = "outbox_"


def channel_name(table: Table | str) -> str:
    """The NOTIFY channel of an outbox table. The schema is not part of it."""
    name = table if isinstance(table, str) else table.name
    return f"{CHANNEL_PREFIX}{name}"


def check_identifiers(table_name: object, derived: list[str]) -> str:
    """The table's name, when it and everything derived from it fits."""
    if not isinstance(table_name, str):
        raise TypeError(f"table_name must be a str, got {type(table_name).__name__}")
    if not table_name:
        raise ValueError("table_name must be non-empty")
    if "\x00" in table_name:
        raise ValueError(f"table_name must not contain a NUL character, got {table_name!r}")
    try:
        longest = max([table_name, *derived], key=lambda name: len(name.encode()))
    except UnicodeEncodeError:
        raise ValueError(f"table_name must be valid Unicode, got {table_name!r}") from None
    size = len(longest.encode())
    if size > IDENTIFIER_BYTES_MAX:
        raise ValueError(
            f"table_name {table_name!r} is too long: {longest!r}, which is derived from it, has "
            f"{size} bytes and an identifier holds {IDENTIFIER_BYTES_MAX} bytes; "
            f"shorten the name by {size - IDENTIFIER_BYTES_MAX}",
        )
    return table_name
