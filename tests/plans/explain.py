"""Run a hot statement as the store would and read what it cost: buffers, and rows it passed.

A *measured line* is a `Wire` of the store. It explains instead of answering, inside a transaction
that is rolled back, so the store's own functions build the parameters.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.ports.store import Line
from outlast.stores.postgres.wire import Wire

SECONDS = 60.0
Planning = Literal["force_custom_plan", "force_generic_plan"]
PLANNINGS: tuple[Planning, ...] = ("force_custom_plan", "force_generic_plan")
_WHOLE_TABLE = {"Seq Scan", "Bitmap Heap Scan", "Bitmap Index Scan"}


@dataclass(frozen=True)
class Plan:
    """One executed plan."""

    root: dict[str, Any]

    @property
    def nodes(self) -> Iterator[dict[str, Any]]:
        return _walk(self.root)

    @property
    def buffers(self) -> int:
        """Shared buffers hit or read by the whole statement."""
        read = {node["CTE Name"] for node in self.nodes if node["Node Type"] == "CTE Scan"}
        # a writing CTE that nobody reads runs after the plan and is not counted in its root
        afterwards = [
            child
            for child in self.root.get("Plans", ())
            if child.get("Subplan Name", "").removeprefix("CTE ") not in read
            and child.get("Subplan Name", "").startswith("CTE ")
        ]
        return sum(_buffers(node) for node in (self.root, *afterwards))

    def found_in(self) -> int:
        """Buffers of the part that finds and locks the rows, in a claim."""
        return max(_buffers(node) for node in self.nodes if node["Node Type"] == "LockRows")

    def passed(self, table: str) -> int:
        """Rows of the table that scans looked at, wanted or not."""
        return sum(
            round(
                node["Actual Loops"]
                * (
                    node["Actual Rows"]
                    + node.get("Rows Removed by Filter", 0)
                    + node.get("Rows Removed by Index Recheck", 0)
                )
            )
            for node in self.nodes
            if node.get("Relation Name") == table and node["Node Type"].endswith("Scan")
        )

    @property
    def written(self) -> int:
        """Rows of the first table that the statement wrote."""
        counts = [
            round(node["Actual Rows"] * node["Actual Loops"])
            for node in self.nodes
            if node["Node Type"] == "ModifyTable"
        ]
        return counts[0] if counts else 0

    def whole_table_scans(self) -> list[str]:
        """Nodes that read a table or an index from one end to the other."""
        return [
            f"{node['Node Type']} on {node.get('Relation Name') or node.get('Index Name')}"
            for node in self.nodes
            if node["Node Type"] in _WHOLE_TABLE
        ]

    def sorted_rows(self) -> int:
        """The most rows that one sort took in."""
        return max(
            (
                round(child["Actual Rows"] * child["Actual Loops"])
                for node in self.nodes
                if "Sort" in node["Node Type"]
                for child in node["Plans"]
            ),
            default=0,
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self.root, 0))


def _buffers(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


def _lines(node: dict[str, Any], depth: int) -> Iterator[str]:
    place = node.get("Index Name") or node.get("Relation Name") or node.get("CTE Name") or ""
    yield (
        f"{'  ' * depth}{node['Node Type']} {place} rows={node['Actual Rows']} "
        f"loops={node['Actual Loops']} buffers={_buffers(node)}"
    )
    for child in node.get("Plans", ()):
        yield from _lines(child, depth + 1)


class _Explained(Exception):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan


class MeasuredLine:
    """A line that explains what it is asked to run. Like the store's own, it prepares a statement
    once: a generic plan stays what it was when it was made."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._types: dict[str, list[str]] = {}
        self.planning: Planning = "force_custom_plan"

    @property
    def connection(self) -> Any:
        return self._wire.connection

    def answering(self) -> Wire:
        """The line itself, which answers."""
        return self._wire

    async def measure(self, call: Callable[[Any], Awaitable[object]]) -> Plan:
        """What the one statement costs that `call` sends over the line it is given."""
        try:
            await call(self)
        except _Explained as explained:
            return explained.plan
        raise AssertionError("nothing was sent")

    async def fetch(self, sql: str, arguments: Sequence[Any], timeout: float) -> list[Any]:
        raise _Explained(await self.explain(sql, arguments))

    async def explain(self, sql: str, arguments: Sequence[Any]) -> Plan:
        connection = self.connection
        await connection.execute(f"SET plan_cache_mode = {self.planning}")
        name, types = await self._prepare(sql)
        # EXPLAIN EXECUTE takes no bound parameters
        quoted = [f"quote_nullable(${n}::{kind}::text)" for n, kind in enumerate(types, start=1)]
        literals = await connection.fetchrow(f"SELECT {', '.join(quoted)}", *arguments)
        given = ", ".join(f"{text}::{kind}" for text, kind in zip(literals, types, strict=True))
        async with self.rolled_back():
            answer = await connection.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {name} ({given})"
            )
        # the engine may have given the connection a codec for JSON
        found = json.loads(answer) if isinstance(answer, str) else answer
        return Plan(found[0]["Plan"])

    async def _prepare(self, sql: str) -> tuple[str, list[str]]:
        if sql not in self._types:
            described = await self.connection.prepare(sql)
            self._types[sql] = [kind.name for kind in described.get_parameters()]
            name, types = f"measured_{len(self._types)}", self._types[sql]
            await self.connection.execute(f"PREPARE {name} ({', '.join(types)}) AS {sql}")
        return f"measured_{list(self._types).index(sql) + 1}", self._types[sql]

    @asynccontextmanager
    async def rolled_back(self) -> Any:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            yield
        finally:
            await transaction.rollback()


@asynccontextmanager
async def measured_line(
    engine: AsyncEngine, line: Line = "settles", *, settled: bool = True
) -> Any:
    """A line opened by the store's own code; `settled=False` leaves its settings out."""
    wire = Wire(engine, line, durable=line == "letters")
    await wire.open()
    if settled:
        await wire.settle_in(SECONDS)
    # a plan gone wrong can run for hours
    await wire.connection.execute("SET statement_timeout = '20s'")
    try:
        yield MeasuredLine(wire)
    finally:
        await wire.close()
