"""What the desk refuses to do at all, as errors that name the thing and the next step.

What one letter of many cannot do is no error: it is that letter's result.
"""

from outlast.model.errors import OutlastError


class DeskError(OutlastError):
    """A sentence for an operator. `remedy` is the next step."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


class NotAllowed(DeskError, PermissionError):  # noqa: N818 - they read as what they say
    """The actor lacks a scope."""

    def __init__(self, scope: str, message: str) -> None:
        super().__init__(message)
        self.scope = scope


class BadRequest(DeskError, ValueError):  # noqa: N818
    """An argument that cannot be used."""


def check_text(name: str, text: str, most: int) -> None:
    """Refuse a text that no database keeps, or that is too long."""
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise BadRequest(f"{name} contains a character that databases cannot store")
    if len(text) > most:
        raise BadRequest(f"{name} has {len(text)} characters; {most} are kept")


class LetterNotFound(DeskError, LookupError):  # noqa: N818
    """No dead letter, or outbox row, has this id."""


def not_found(letter_id: int) -> LetterNotFound:
    """The refusal of an id, in the words that every door has."""
    return LetterNotFound(f"DLQ message '{letter_id}' not found.", "outlast dlq list")


class NotRecorded(DeskError):  # noqa: N818
    """The tables lack what this needs."""


class EditRefused(DeskError):  # noqa: N818
    """An edit that the data does not allow. `state` is the letter's, if that is why."""

    def __init__(
        self, message: str, remedy: str | None = None, *, state: str | None = None
    ) -> None:
        super().__init__(message, remedy)
        self.state = state


class EditConflict(DeskError):  # noqa: N818
    """The letter is not what the editor saw."""
