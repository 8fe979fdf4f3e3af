"""SQL as a person pastes it: identifiers quoted, no placeholder style of a driver in it.

In: Tables, columns and statements. Out: text for `psql`, `sqlite3`, or a plain connection.
"""

from typing import Any

from sqlalchemy import Column, Dialect, Executable, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import ExecutableDDLElement

# drivers that mark parameters with a percent sign would have one in a name doubled
DIALECTS: dict[str, Dialect] = {
    "postgresql": postgresql.dialect(paramstyle="named"),  # type: ignore[no-untyped-call]
    "sqlite": sqlite.dialect(paramstyle="named"),
}


def spelled(table: Table, dialect: str) -> str:
    """The quoted name of a table, with its schema."""
    name: str = DIALECTS[dialect].identifier_preparer.format_table(table)
    return name


def quoted(name: str, dialect: str) -> str:
    """The quoted name of anything."""
    return DIALECTS[dialect].identifier_preparer.quote(name)


def written(element: ExecutableDDLElement | Executable, dialect: str) -> str:
    """A whole statement, its values in it."""
    compiled: Any = element
    options = {} if isinstance(element, ExecutableDDLElement) else {"literal_binds": True}
    text = str(compiled.compile(dialect=DIALECTS[dialect], compile_kwargs=options))
    return "\n".join(line.rstrip().replace("\t", "    ") for line in text.strip().splitlines())


def column_spec(column: Column[Any], dialect: str) -> str:
    """A column as CREATE and ALTER TABLE write it."""
    return str(_ddl(dialect).get_column_specification(column))


def default_of(column: Column[Any], dialect: str) -> str:
    """The default of a column, as an expression."""
    return str(_ddl(dialect).get_column_default_string(column))


def _ddl(dialect: str) -> Any:
    found: Any = DIALECTS[dialect]
    return found.ddl_compiler(found, None)
