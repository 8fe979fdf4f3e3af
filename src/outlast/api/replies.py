"""What a route may answer, for OpenAPI: its document, and its problems.

In: the model of a document. Out: the responses of a route.
"""

from typing import Any

from pydantic import BaseModel, Field

from outlast.api.answers import PROBLEM_TYPE


class ProblemDocument(BaseModel):
    """Every refusal. `error` says what and why, `remedy` the next step."""

    type: str = "about:blank"
    title: str = Field(examples=["Conflict"])
    status: int = Field(examples=[409])
    error: str = Field(examples=["replayed 3 times since it was opened, and here again"])
    remedy: str | None = None
    gate: str | None = Field(None, examples=["replay_limit"])
    scope: str | None = None
    errors: list[dict[str, str]] | None = None
    position: int | None = Field(None, description="The character of `q` that is wrong, from 0.")
    pointer: str | None = Field(None, description="Two lines that show it.")
    nearest: str | None = Field(None, description="The word that may have been meant.")


_SAID = {
    400: "The body cannot be read.",
    401: "There is no token, or it is not known.",
    403: "The token lacks the scope, or a page of another origin asks.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    409: "Refused by a gate (`gate`), by the letter's state, or the same request is under way.",
    412: "The letter changed since its ETag was read.",
    413: "The body is too large.",
    414: "The URL is too long.",
    422: "The request says something that cannot be done; `errors` or `pointer` shows where.",
    429: "Too much is under way; come again.",
    431: "The headers are too large.",
    501: "The tables here lack what this needs.",
    503: "The database is away.",
}
_ALWAYS = (400, 401, 403, 408, 409, 413, 414, 422, 429, 431, 501, 503)
_TO_ANYBODY = (400, 401, 408, 413, 414, 422, 429, 431)

Responses = dict[int | str, dict[str, Any]]


def of(model: type[BaseModel], *more: int, anybody: bool = False) -> Responses:
    """The responses of a route with this document. `anybody`: it needs no token, and no tables."""
    own: Responses = {200: {"model": model}}
    if anybody:
        unwell: Responses = {
            status: {"model": model, "description": "It is not well."} for status in more
        }
        return own | unwell | _problems(*_TO_ANYBODY)
    return own | _problems(*_ALWAYS, *more)


def _problems(*statuses: int) -> Responses:
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        status: {"description": _SAID[status], "content": {PROBLEM_TYPE: {"schema": schema}}}
        for status in sorted(set(statuses))
    }


def _stream(*media: str) -> Responses:
    content = {one: {"schema": {"type": "string"}} for one in media}
    return {200: {"description": "Text.", "content": content}} | _problems(*_ALWAYS)


METRICS = _stream("text/plain")
EXPORTED = _stream("application/x-ndjson", "text/csv", "text/x-python")
EXPORTED[200]["content"]["application/json"] = {"schema": {}}
