"""Gates: a figure, its threshold, and whether it holds. Counters and ratios, never seconds."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass
class Finding:
    """One line of the report."""

    id: str
    what: str
    value: float | None
    """None: it could not be measured, which is a failure of a gate."""
    relation: Literal[">=", "<="] | None = None
    threshold: float | None = None
    gates: bool = True
    """Whether it decides the exit status; else it is reported against its later threshold."""
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """None: there is nothing to hold."""
        if self.relation is None or self.threshold is None:
            return None
        if self.value is None:
            return False
        return (
            self.value >= self.threshold if self.relation == ">=" else self.value <= self.threshold
        )

    def as_json(self) -> dict[str, Any]:
        """With its verdict."""
        return asdict(self) | {"holds": self.holds}


def failed(findings: list[Finding]) -> list[Finding]:
    """The gates that do not hold."""
    return [f for f in findings if f.gates and f.holds is False]
