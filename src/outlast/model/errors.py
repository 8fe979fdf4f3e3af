"""The errors of outlast, as a tree.

OutlastError
├── LeaseLimitExceeded     a handler outlived the limit of its lease (also a TimeoutError)
├── NotConnected           the broker has no engine, or was not started (also a RuntimeError)
├── SchemaError            a table or column is missing, or of another shape (also a RuntimeError)
│   └── NoDeadLetterQueue  there is an outbox, and no table of dead letters beside it
├── FilterError            a filter of the desk that says nothing (model/query; also a ValueError)
├── UnsupportedDatabase    a driver, version or mode that cannot consume (also a RuntimeError)
└── StoreFailure           a statement failed; the class says what is known of its effect
    ├── RowLocked          nothing landed: somebody else holds a lock
    ├── TryLater           nothing landed: the server asks to come back
    ├── RowRefused         nothing landed: the data of a row does not fit
    ├── CannotWrite        nothing landed: table, column, right or disk is missing
    ├── OutcomeUnknown     it may have landed: the answer was lost
    └── Disconnected       nothing was sent: there is no connection
"""


class OutlastError(Exception):
    """The root of the tree."""


class LeaseLimitExceeded(OutlastError, TimeoutError):  # noqa: N818 - a public name
    """Refreshing a lease ends `lease_limit_seconds` after the handler's start."""


class NotConnected(OutlastError, RuntimeError):  # noqa: N818
    """There is no engine, or the broker was not started."""


class SchemaError(OutlastError, RuntimeError):
    """A table or column is missing, or of another shape."""


class NoDeadLetterQueue(SchemaError):  # noqa: N818
    """There is an outbox without a table of dead letters."""


class UnsupportedDatabase(OutlastError, RuntimeError):  # noqa: N818
    """This driver, version or mode cannot consume."""


class StoreFailure(OutlastError):  # noqa: N818
    """A statement failed. `state` is the SQLSTATE, or SQLite's name for the error."""

    def __init__(self, message: str, *, state: str | None = None) -> None:
        super().__init__(message)
        self.state = state


class RowLocked(StoreFailure):
    """A row or table is locked by somebody else."""


class TryLater(StoreFailure):
    """Serialization failure, shutdown, cancelled statement."""


class RowRefused(StoreFailure):
    """A value does not fit its column."""


class CannotWrite(StoreFailure):
    """A table, column, right or disk block is missing."""


class OutcomeUnknown(StoreFailure):
    """The answer was lost. `timed_out`: the connection still stands, the statement was given up."""

    def __init__(self, message: str, *, state: str | None = None, timed_out: bool = False) -> None:
        super().__init__(message, state=state)
        self.timed_out = timed_out


class Disconnected(StoreFailure):
    """There is no connection; nothing was sent."""
