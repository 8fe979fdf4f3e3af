"""The desk, whole: what command line, REST and pages call.

In: an engine and the names or tables of outbox and dead letters; each call an actor. Out: values.
"""

from outlast.ops.changing import Changing
from outlast.ops.exporting import Exporting
from outlast.ops.importing import Importing
from outlast.ops.looking import Looking
from outlast.ops.outbox import OutboxDesk
from outlast.ops.replaying import Replaying
from outlast.ops.requests import Requests
from outlast.ops.schema import SchemaDesk
from outlast.ops.subscriptions import Subscriptions

__all__ = ["Desk"]


class Desk(
    Replaying,
    Changing,
    OutboxDesk,
    Requests,
    Looking,
    SchemaDesk,
    Exporting,
    Importing,
    Subscriptions,
):
    """`Desk(engine, outbox_table, dlq_table, options=DeskOptions(...))`; finds out at the first
    call which columns and tables there are.
    """
