"""The data: the tables on the application's MetaData, and the statements every database shares.

In: a MetaData. Out: `Table`s and Core statements over them. Anybody above may import this; DDL is
never issued from here, the application's migrations do that.
"""

from outlast.tables.autovacuum import outbox_autovacuum_ddl
from outlast.tables.dead_letters import make_dlq_table
from outlast.tables.names import channel_name
from outlast.tables.operations import make_operations_tables, operations_table_names
from outlast.tables.outbox import make_outbox_table

__all__ = [
    "channel_name",
    "make_dlq_table",
    "make_operations_tables",
    "make_outbox_table",
    "operations_table_names",
    "outbox_autovacuum_ddl",
]
