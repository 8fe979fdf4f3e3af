"""Many dead letters, made in SQL: twenty queues, three hundred causes, two seconds apart."""

from typing import Any

from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table

QUEUES, CAUSES = 20, 300

_COLUMNS = (
    "original_id, queue, payload, headers, deliveries_count, created_at, failed_at, "
    "last_failure_at, first_failure_at, state_changed_at, failure_reason, failure_category, "
    "fingerprint, subscriber, consumer_version, error_type, error_message, last_exception, "
    "message_id, stack_trace, state, replayed_as"
)
_POSTGRES = f"""
insert into outbox_dlq ({_COLUMNS})
select g, 'q' || g % {QUEUES},
  convert_to('{{"n": ' || g || ', "pad": "' || repeat('x', 150) || '"}}', 'UTF8'),
  '{{"content-type": "application/json"}}', 3, t, t, t, t, t, 'retry_terminal',
  (array['EXTERNAL', 'TIMEOUT', 'VALIDATION', 'UNKNOWN'])[1 + g % 4],
  'v1:' || md5((g % {CAUSES})::text), 'shop.handler' || g % {QUEUES}, '1.' || g % 3,
  'ValueError', 'bad thing ' || g % {CAUSES}, 'ValueError(''bad thing'')', g::text,
  repeat('  File "a.py", line 3', 20),
  case when g <= :replaying then 'replaying' else 'open' end,
  case when g <= :replaying then g end
from (select g, now() - interval '1 second' * (:rows - g) * 2 t
      from generate_series(1, :rows) g) s
"""
_SQLITE = f"""
with recursive s(g) as (select 1 union all select g + 1 from s where g < :rows),
  k as (select g, strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || ((:rows - g) * 2) || ' seconds') t
        from s)
insert into outbox_dlq ({_COLUMNS})
select g, 'q' || g % {QUEUES}, cast('{{"n": ' || g || ', "pad": "' || :pad || '"}}' as blob),
  '{{"content-type": "application/json"}}', 3, t, t, t, t, t, 'retry_terminal',
  case g % 4 when 0 then 'EXTERNAL' when 1 then 'TIMEOUT' when 2 then 'VALIDATION'
  else 'UNKNOWN' end,
  'v1:' || g % {CAUSES}, 'shop.handler' || g % {QUEUES}, '1.' || g % 3,
  'ValueError', 'bad thing ' || g % {CAUSES}, 'ValueError(''bad thing'')', g,
  :trace,
  case when g <= :replaying then 'replaying' else 'open' end,
  case when g <= :replaying then g end
from k
"""


async def fill(engine: AsyncEngine, rows: int, replaying: int = 0) -> None:
    """The tables of the desk, and so many letters, the newest last."""
    metadata = MetaData()
    make_outbox_table(metadata)
    make_dlq_table(metadata)
    make_operations_tables(metadata)
    given: dict[str, Any] = {"rows": rows, "replaying": replaying}
    is_postgres = engine.dialect.name == "postgresql"
    if not is_postgres:
        given |= {"pad": "x" * 150, "trace": '  File "a.py", line 3' * 20}
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(text(_POSTGRES if is_postgres else _SQLITE), given)
    settled = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with settled.connect() as connection:
        await connection.execute(text("vacuum analyze" if is_postgres else "analyze"))
