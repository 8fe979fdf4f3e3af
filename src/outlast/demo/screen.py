"""The picture while the demo runs: one that moves on a terminal, plain lines elsewhere.

In: a `Picture`, a few times a second. Out: at most 80 columns. Nothing here decides anything.
"""

from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outlast.demo.meter import Picture
from outlast.demo.shop import WHAT_HAPPENS

_PLAIN_HEADER = " time  committed  delivered  retried  dead  waiting  per second  oldest waiting"
_PLAIN_LINES = 10
_PLAIN_SECONDS_MAX = 10.0
WIDTH_MAX = 80


class Screen(Protocol):
    """Where pictures go."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(self, *_: object) -> None:
        """Leave the last picture standing."""

    def show(self, picture: Picture) -> None:
        """The picture of this moment."""

    def finish(self, picture: Picture) -> None:
        """The last one."""


def make_screen(console: Console, seconds: float) -> Screen:
    """The one that fits what we write to."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console)
    return PlainScreen(console, every=min(max(1.0, seconds / _PLAIN_LINES), _PLAIN_SECONDS_MAX))


def age(seconds: float) -> str:
    """How long something has waited, in a few characters."""
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"  # noqa: PLR2004


class LiveScreen:
    """A picture that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, picture: Picture) -> None:
        """Draw it."""
        width = min(WIDTH_MAX, self._live.console.width)
        self._live.update(draw(picture, width), refresh=True)

    def finish(self, picture: Picture) -> None:
        """Leave it standing."""
        self.show(picture)


class PlainScreen:
    """A line now and then, and one whenever the phase changes."""

    def __init__(self, console: Console, *, every: float) -> None:
        self._console = console
        self._every = every
        self._next = every
        self._phase: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, picture: Picture) -> None:
        """Write it, if it is time."""
        if picture.phase != self._phase:
            first, self._phase = self._phase is None, picture.phase
            self._write(picture.phase)
            if first:
                self._write(_PLAIN_HEADER)
        if picture.elapsed >= self._next:
            self._next += self._every
            self._write_row(picture)

    def finish(self, picture: Picture) -> None:
        """Write it."""
        self._write(picture.phase)
        self._write_row(picture)

    def _write_row(self, picture: Picture) -> None:
        self._write(
            f"{f'{picture.elapsed:.0f} s':>5}{picture.committed:>11,}"
            f"{sum(picture.delivered.values()):>11,}{sum(picture.retried.values()):>9,}"
            f"{sum(picture.dead.values()):>6,}{picture.waiting:>9,}"
            f"{picture.per_second:>12,.0f}{age(picture.oldest_seconds):>16}"
        )

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def draw(picture: Picture, width: int) -> RenderableType:
    """The moving picture."""
    total = Table(box=None, padding=(0, 1), header_style="dim", width=width)
    for header in ("committed", "delivered", "retried", "dead", "waiting", "per second"):
        total.add_column(header, justify="right")
    total.add_column("oldest waiting", justify="right")
    total.add_row(
        Text(f"{picture.committed:,}", "bold"),
        Text(f"{sum(picture.delivered.values()):,}", "bold green"),
        Text(f"{sum(picture.retried.values()):,}", "yellow"),
        Text(f"{sum(picture.dead.values()):,}", "red"),
        f"{picture.waiting:,}",
        f"{picture.per_second:,.0f}",
        age(picture.oldest_seconds),
    )
    queues = Table(box=None, padding=(0, 1), header_style="dim", width=width)
    queues.add_column("queue", no_wrap=True)
    for header in ("delivered", "retried", "dead"):
        queues.add_column(header, justify="right", no_wrap=True)
    queues.add_column("what happens there", style="dim", no_wrap=True)
    for queue, what in WHAT_HAPPENS.items():
        queues.add_row(
            queue,
            *(
                f"{counts.get(queue, 0):,}"
                for counts in (picture.delivered, picture.retried, picture.dead)
            ),
            what,
        )
    foot = Text(f" {picture.elapsed:3.0f} s  {picture.phase}", "dim")
    return Group(total, "", queues, "", foot)
