"""A table as the database describes it, in one form for every database. Values only."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LiveColumn:
    """`type` is the database's own spelling."""

    type: str
    nullable: bool
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class LiveIndex:
    """`predicate` is the condition of a partial index, as the database writes it."""

    columns: tuple[str, ...]
    unique: bool
    predicate: str | None
    valid: bool = True


@dataclass(frozen=True, slots=True)
class LiveTable:
    """What the catalogue says of one table."""

    columns: dict[str, LiveColumn]
    indexes: dict[str, LiveIndex]
    checks: dict[str, str]
    """Conditions by the name of their constraint."""
    storage: dict[str, str] = field(default_factory=dict)
    is_partitioned: bool = False
