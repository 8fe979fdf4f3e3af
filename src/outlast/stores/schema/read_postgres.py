"""Reading a table from PostgreSQL's catalogue.

In: a connection and a Table; without a schema it is found as a statement would find it, by the
search_path. Out: a `LiveTable`, or None when there is no such table.
"""

from typing import Any

from sqlalchemy import Table, Text, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.stores.schema.live import LiveColumn, LiveIndex, LiveTable
from outlast.stores.schema.spelling import spelled

_TABLE = text(
    """
    SELECT c.oid::bigint AS oid, c.reloptions::text[] AS storage,
           c.relkind::text = 'p' AS is_partitioned
    FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass(:name)
    """,
).bindparams(bindparam("name", type_=Text))

_COLUMNS = text(
    """
    SELECT a.attname::text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,
           NOT a.attnotnull AS nullable, a.atthasdef OR a.attidentity <> '' AS has_default
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = CAST(:oid AS bigint)::oid AND a.attnum > 0 AND NOT a.attisdropped
    """,
)

_INDEXES = text(
    """
    SELECT c.relname::text AS name, i.indisunique AS is_unique,
           i.indisvalid AND i.indisready AS is_valid,
           pg_catalog.pg_get_expr(i.indpred, i.indrelid) AS predicate,
           array(SELECT pg_catalog.pg_get_indexdef(i.indexrelid, place, false)
                 FROM pg_catalog.generate_series(1, i.indnkeyatts) place ORDER BY place) AS columns,
           array(SELECT option & 1 FROM pg_catalog.unnest(i.indoption::int2[]) option) AS backwards
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = CAST(:oid AS bigint)::oid
    """,
)

_CHECKS = text(
    """
    SELECT k.conname::text AS name, pg_catalog.pg_get_expr(k.conbin, k.conrelid) AS condition
    FROM pg_catalog.pg_constraint k
    WHERE k.conrelid = CAST(:oid AS bigint)::oid AND k.contype = 'c'
    """,
)


async def read(connection: AsyncConnection, table: Table) -> LiveTable | None:
    """The table as the catalogue has it."""
    name = spelled(table, "postgresql")
    found = (await connection.execute(_TABLE, {"name": name})).mappings().first()
    if found is None:
        return None
    oid = {"oid": found["oid"]}
    columns = await connection.execute(_COLUMNS, oid)
    indexes = await connection.execute(_INDEXES, oid)
    checks = await connection.execute(_CHECKS, oid)
    return LiveTable(
        columns={row.name: LiveColumn(row.type, row.nullable, row.has_default) for row in columns},
        indexes={row.name: _index(row) for row in indexes},
        checks={row.name: row.condition for row in checks},
        storage=dict(option.split("=", 1) for option in found["storage"] or ()),
        is_partitioned=found["is_partitioned"],
    )


def _index(row: Any) -> LiveIndex:
    columns = tuple(
        f"{column} DESC" if backwards else column.strip('"')
        for column, backwards in zip(row.columns, row.backwards, strict=False)
    )
    return LiveIndex(columns, row.is_unique, row.predicate, row.is_valid)
