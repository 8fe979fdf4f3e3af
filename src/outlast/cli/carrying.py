"""`dlq export` and `dlq import`: letters as files, and back.

In: the shared options and those of the verb. Out: an exit status. A file is whole or not there, its
owner alone may read it, and what was there before stays unless it was said.
"""

import contextlib
import io
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast, get_args

from outlast.cli.asking import Asked, Wanted
from outlast.cli.frame import DONE, failed, query_of, run, show
from outlast.cli.mending import read_bytes
from outlast.cli.paper import say, tell
from outlast.ops import Actor, BadRequest, Desk
from outlast.ops.exporting import ExportKind
from outlast.ops.importing import ImportResult
from outlast.ops.running import Interrupted
from outlast.policy.neutral_text import neutral_text

IMPORT_BYTES_MAX = 256 * 1024 * 1024
LINES_MAX = 20
"""Letters of a large import that are told one by one."""


class Carriage(NamedTuple):
    """How an export is meant, as it was typed."""

    kind: str
    file: str | None
    overwrite: bool
    reveal: bool
    reason: str | None


def export_letters(asked: Asked, wanted: Wanted, way: Carriage) -> int:
    """All that the filter takes, to a file or to stdout."""

    async def body(desk: Desk, actor: Actor) -> int:
        if way.kind not in get_args(ExportKind):
            raise BadRequest(f"--as is one of {', '.join(get_args(ExportKind))}, got {way.kind!r}")
        count = 0

        def progress(number: int) -> None:
            nonlocal count
            count = number

        parts = desk.export(
            actor,
            query_of(wanted),
            kind=cast("ExportKind", way.kind),
            reveal=way.reveal,
            reason=way.reason,
            progress=progress,
        )
        if way.file is None or way.file == "-":
            await _poured(parts, _to_stdout())
            tell(f"Exported {count} message(s).")
            return DONE
        path = Path(way.file)
        with _new_file(path, overwrite=way.overwrite) as file:
            await _poured(parts, file.write)
        if asked.json:
            show({"exported": count, "file": str(path), "as": way.kind})
        else:
            say(f"Exported {count} message(s) to {path}.")
        return DONE

    return run(asked, body)


async def _poured(parts: AsyncIterator[str], write: Callable[[str], Any]) -> None:
    async for part in parts:
        write(part)


def _to_stdout() -> Callable[[str], Any]:
    """A terminal gets harmless text; a pipe gets the very text, in the encoding of a file."""
    if sys.stdout.isatty():
        return lambda text: sys.stdout.write(neutral_text(text, lines=True))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogatepass", newline="")
    return sys.stdout.write


@contextlib.contextmanager
def _new_file(path: Path, *, overwrite: bool) -> Iterator[TextIO]:
    """A file of our own beside the wanted one, which takes its name when all is written."""
    if not overwrite and os.path.lexists(path):
        raise _is_there(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        number = os.open(part, flags, 0o600)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            yield file
            file.flush()
            os.fsync(number)
        if overwrite:
            part.replace(path)
        else:
            _named(part, path)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        part.unlink(missing_ok=True)


def _named(part: Path, path: Path) -> None:
    try:
        # a link never takes the place of a file that has come meanwhile
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError from None
        part.rename(path)


def _is_there(path: Path) -> BadRequest:
    return BadRequest(f"{path} is there already", "name another file, or say --overwrite")


def _unwritable(path: Path, error: Exception) -> BadRequest:
    said = error.strerror if isinstance(error, OSError) else "that is no name of a file"
    return BadRequest(f"{path} cannot be written: {said}")


def import_letters(asked: Asked, name: str, reason: str | None, *, dry_run: bool) -> int:
    """The letters of an export become letters here."""

    async def body(desk: Desk, actor: Actor) -> int:
        found = read_bytes(name, "import", IMPORT_BYTES_MAX)
        try:
            text = found.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BadRequest(
                f"{name} is no text in UTF-8", "import reads what export --as json or jsonl wrote"
            ) from None
        try:
            done = await desk.import_letters(actor, text, reason=reason, dry_run=dry_run)
        except Interrupted as broken:
            told: Any = broken.done
            if not asked.json:
                _print_import(told, dry_run=dry_run)
            return failed(asked, broken, told.as_json())
        if asked.json:
            show(done.as_json())
        else:
            _print_import(done, dry_run=dry_run)
        return done.exit_code

    return run(asked, body)


def _print_import(done: ImportResult, *, dry_run: bool) -> None:
    word = "Would import" if dry_run else "Imported"
    say(f"{word} {done.imported} message(s).")
    if done.skipped:
        tell(f"{done.skipped} skipped: they are here already")
    bad = [result for result in done.results if result.outcome == "failed"]
    for result in bad[:LINES_MAX]:
        tell(f"Document {result.number} (line {result.line}) failed: {result.reason}")
        if result.remedy:
            tell(f"  {result.remedy}")
    if done.failed > LINES_MAX:
        tell(f"{done.failed} failed in all (--json tells each)")
    notes = [(result.number, note) for result in done.results for note in result.notes]
    for number, note in notes[:LINES_MAX]:
        tell(f"note on document {number}: {note}")
