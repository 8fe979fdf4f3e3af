"""The statements that put messages into one outbox table, each built once.

In: a Table. Out: Core statements with the parameters named by `PARAMETERS`. On PostgreSQL the
wake-up is part of the INSERT: it obeys the transaction and its savepoints, and the server drops
repetitions. Built per writer, never per publish.
"""

from typing import Any, Literal

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Executable,
    LargeBinary,
    Select,
    String,
    Table,
    TableValuedAlias,
    Text,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    literal_column,
    null,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from outlast.model.headers import REPLAY
from outlast.tables.instant import SECONDS, Instant, clock, clock_plus
from outlast.tables.names import channel_name

When = Literal["now", "in", "at"]
"""When a message is due: at once, after a delay, at an instant."""

PARAMETERS = ("p_queue", "p_payload", "p_headers", "p_timer_id", "p_in", "p_at")


class Insertion:
    """The inserts of one table in one database."""

    def __init__(self, table: Table, *, is_postgres: bool, notify: bool) -> None:
        self.table = table
        self.is_postgres = is_postgres
        self._channel = channel_name(table) if notify and is_postgres else None
        self._built: dict[tuple[str, When], Executable] = {}
        self.target = table.insert()
        self.unleased_timer = select(table.c.id).where(*self._is_unleased_timer())

    def single(self, when: When) -> Executable:
        """One message; answers its id."""
        return self._once("single", when)

    def batch(self, when: When) -> Executable:
        """Many messages. PostgreSQL takes arrays, the others a list of parameters."""
        return self._once("batch", when)

    def replays(self) -> Executable:
        """PostgreSQL: replays from arrays, due now; answers the letter and the id of each."""
        return self._once("replays", "now")

    def timer(self, when: When) -> Executable:
        """One message, unless a live one has its timer; answers the id or nothing."""
        return self._once("timer", when)

    def postpone(self, when: When) -> Executable:
        """Move an unleased timer to a later time, with a new message; answers its id."""
        return self._once("postpone", when)

    def extend(self, when: When) -> Executable:
        """PostgreSQL: postpone, else insert, else say which unleased row stays as it is."""
        return self._once("extend", when)

    def _once(self, kind: str, when: When) -> Executable:
        built = self._built.get((kind, when))
        if built is None:
            built = self._built[kind, when] = getattr(self, f"_{kind}")(when)
        return built

    def _single(self, when: When) -> Executable:
        return self.target.values(self._row(self._due(when))).returning(*self._answer(when))

    def _timer(self, when: When) -> Executable:
        row = self._row(self._due(when)) | {"timer_id": bindparam("p_timer_id", type_=String)}
        statement: Executable = self._unless_live(row).returning(*self._answer(when))
        return statement

    def _batch(self, when: When) -> Executable:
        if not self.is_postgres:
            return self.target.values(self._row(self._due(when)))
        given = _arrays(payload=LargeBinary, headers=Text)
        row = self._row(self._due(when)) | {
            "payload": given.c.payload,
            "headers": cast(given.c.headers, self.table.c.headers.type),
        }
        inserted = (
            self.target.from_select(list(row), select(*row.values()).order_by(given.c.place))
            .returning(*self._answer(when))
            .cte("inserted")
        )
        return select(func.count()).select_from(inserted)

    def _replays(self, when: When) -> Executable:
        t = self.table
        given = _arrays(queue=Text, payload=LargeBinary, headers=Text)
        row = self._row(self._due(when)) | {
            "queue": given.c.queue,
            "payload": given.c.payload,
            "headers": cast(given.c.headers, t.c.headers.type),
        }
        letter = cast(t.c.headers[REPLAY].as_string(), BigInteger).label("letter")
        return self.target.from_select(
            list(row), select(*row.values()).order_by(given.c.place)
        ).returning(letter, *self._answer(when))

    def _postpone(self, when: When) -> Executable:
        due = self._due(when)
        t = self.table
        return (
            update(t)
            .where(*self._is_unleased_timer(), t.c.next_attempt_at < due)
            .values(self._fresh(due))
            .returning(*self._answer(when))
        )

    def _extend(self, when: When) -> Executable:
        # A leased row must stay unlocked, so that its worker can settle it while our caller's
        # transaction is open: ON CONFLICT DO UPDATE would hold it even where it changes nothing.
        t = self.table
        # a CTE, so that every part compares with one and the same reading of the clock
        wanted = select(self._due(when).label("due")).cte("wanted")
        due = select(wanted.c.due).scalar_subquery()
        moved = (
            update(t)
            .where(*self._is_unleased_timer(), t.c.next_attempt_at < due)
            .values(self._fresh(due))
            .returning(*self._answer(when))
            .cte("moved")
        )
        row = self._row(due) | {"timer_id": bindparam("p_timer_id", type_=String)}
        added = self._unless_live(row, unless=moved).returning(*self._answer(when)).cte("added")
        kept = self.unleased_timer.where(t.c.next_attempt_at >= due)
        found = union_all(
            select(moved.c.id, literal_column("1").label("rank")),
            select(added.c.id, literal_column("2").label("rank")),
            kept.add_columns(literal_column("3").label("rank")),
        ).subquery("found")
        return select(found.c.id).order_by(found.c.rank).limit(1)

    def _unless_live(self, row: dict[str, Any], unless: CTE | None = None) -> Any:
        t = self.table
        dialect = postgresql if self.is_postgres else sqlite
        insert: Any = dialect.insert(t)
        if unless is None:
            insert = insert.values(row)
        else:
            source: Select[Any] = select(*row.values()).where(~exists(select(unless.c.id)))
            insert = insert.from_select(list(row), source)
        return insert.on_conflict_do_nothing(
            index_elements=[t.c.queue, t.c.timer_id],
            index_where=t.c.timer_id.is_not(None),
        )

    def _row(self, due: ColumnElement[Any]) -> dict[str, Any]:
        return {
            "queue": bindparam("p_queue", type_=String),
            "payload": bindparam("p_payload", type_=LargeBinary),
            "headers": bindparam("p_headers", type_=self.table.c.headers.type),
            "created_at": clock(),
            "next_attempt_at": due,
        }

    def _fresh(self, due: ColumnElement[Any]) -> dict[str, Any]:
        return {
            "payload": bindparam("p_payload", type_=LargeBinary),
            "headers": bindparam("p_headers", type_=self.table.c.headers.type),
            "next_attempt_at": due,
            "attempts_count": 0,
            "first_attempt_at": null(),
            "last_attempt_at": null(),
        }

    def _due(self, when: When) -> ColumnElement[Any]:
        if when == "in":
            return clock_plus(bindparam("p_in", type_=SECONDS))
        if when == "at":
            return bindparam("p_at", type_=Instant)
        return clock()

    def _answer(self, when: When) -> list[ColumnElement[Any]]:
        t = self.table
        if self._channel is None:
            return [t.c.id]
        wake: ColumnElement[Any] = cast(func.pg_notify(self._channel, t.c.queue), Text)
        if when != "now":
            wake = case((t.c.next_attempt_at <= clock(), wake))
        return [t.c.id, wake.label("woken")]

    def _is_unleased_timer(self) -> list[ColumnElement[bool]]:
        t = self.table
        return [
            t.c.queue == bindparam("p_queue", type_=String),
            t.c.timer_id == bindparam("p_timer_id", type_=String),
            t.c.acquired_token.is_(None),
        ]


def _arrays(**kinds: type[TypeEngine[Any]]) -> TableValuedAlias:
    """Rows from parameters that are arrays, in their order."""
    given = func.unnest(*(bindparam(f"p_{name}", type_=ARRAY(k)) for name, k in kinds.items()))
    columns = (column(name, kind) for name, kind in kinds.items())
    return given.table_valued(*columns, with_ordinality="place", name="given").render_derived()
