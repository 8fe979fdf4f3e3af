"""The names of the tables: quoted, for SQL text, and plain, for messages.

In: the Tables and SQLAlchemy's preparer. Out: text that is safe to put into a statement.
"""

from sqlalchemy import Dialect, MetaData, Table

from outlast.model.errors import UnsupportedDatabase
from outlast.tables.operations import operations_table_names


class Names:
    """What the hot statements call the tables."""

    def __init__(self, dialect: Dialect, outbox: Table, dlq: Table | None) -> None:
        preparer = dialect.identifier_preparer
        self.outbox = preparer.format_table(outbox)
        self.outbox_plain = outbox.name
        self.dlq = None if dlq is None else preparer.format_table(dlq)
        self.dlq_plain = None if dlq is None else dlq.name
        beside = operations_table_names(outbox, dlq)
        self.history_plain, self.worker_plain = beside.history, beside.worker
        self.history, self.worker = (
            name and preparer.format_table(Table(name, MetaData(), schema=outbox.schema))
            for name in (beside.history, beside.worker)
        )
        self.schema_plain = outbox.schema or "main"
        self.schema = preparer.quote(self.schema_plain)
        if dlq is not None and (dlq.schema or "main") != self.schema_plain:
            raise UnsupportedDatabase(
                f"the tables {outbox.name!r} and {dlq.name!r} are in different SQLite schemas "
                f"({self.schema_plain!r} and {dlq.schema or 'main'!r}), so in different files; in "
                "WAL mode a crash can commit one file without the other and lose a message. "
                "Put both tables into one database file."
            )
