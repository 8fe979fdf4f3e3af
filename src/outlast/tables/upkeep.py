"""The statements an application runs on its own outbox rows beside inserting: cancel and look.

In: a Table. Out: Core statements, the same on every database.
"""

from typing import Any

from sqlalchemy import BigInteger, Delete, Select, String, Table, bindparam, delete, select


def cancel_timer(table: Table) -> Delete:
    """Delete the live row of a timer; a leased one is in a worker's hands and stays."""
    return delete(table).where(
        table.c.queue == bindparam("p_queue", type_=String),
        table.c.timer_id == bindparam("p_timer_id", type_=String),
        table.c.acquired_token.is_(None),
    )


def unprocessed(table: Table, *, one_queue: bool) -> Select[Any]:
    """Rows that are not settled, oldest id first."""
    rows = select(table).order_by(table.c.id).limit(bindparam("p_limit", type_=BigInteger))
    if not one_queue:
        return rows
    return rows.where(table.c.queue == bindparam("p_queue", type_=String))
