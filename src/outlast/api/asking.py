"""What a request says, as forms: filters, pages, bodies. Members nobody knows are refused.

In: query and body of a request. Out: queries and options of the desk. Option names have `_`.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from outlast.model.query import FilterError, Query
from outlast.ops.context import REASON_CHARS_MAX
from outlast.policy.filter_text import FILTER_CHARS_MAX, parse, with_options

LIMIT_MAX, LIMIT_DEFAULT = 200, 25
OFFSET_MAX = 10_000
GROUPS_LIMIT_MAX = 1000
IDS_MAX = 10_000
RATE_MAX = 10_000.0
WAIT_MAX = 60.0
CURSOR_CHARS_MAX = 32_768
PLACE_CHARS_MAX = 200
_WORDS_MAX = 25
_VALUE_CHARS_MAX = 500

Reason = Annotated[
    str | None,
    Field(
        max_length=REASON_CHARS_MAX,
        description="Why, for the history.",
        examples=["the carrier is back"],
    ),
]
Cursor = Annotated[
    str | None,
    Field(max_length=CURSOR_CHARS_MAX, description="The `cursor` of an answer: go on from there."),
]
Identifier = Annotated[int, Field(gt=0, lt=2**63)]
Identifiers = Annotated[
    list[Identifier], Field(min_length=1, max_length=IDS_MAX, examples=[[17, 18]])
]
_Value = Annotated[str, StringConstraints(min_length=1, max_length=_VALUE_CHARS_MAX)]
_Values = Annotated[list[_Value], Field(default_factory=list, max_length=_WORDS_MAX)]


class Form(BaseModel):
    """What is not named here is refused."""

    model_config = ConfigDict(extra="forbid")


class Filter(Form):
    """Which letters: `q` in the words of the filter, or options that stand for words."""

    q: Annotated[
        str,
        Field(
            max_length=FILTER_CHARS_MAX,
            description="The filter, as on the command line.",
            examples=['queue:orders category:EXTERNAL error:"timed out" since:2h'],
        ),
    ] = ""
    subscription: Annotated[_Values, Field(description="`queue:`, in Protean's word.")]
    queue: Annotated[_Values, Field(description="`queue:`; may be repeated.")]
    subscriber: Annotated[_Values, Field(description="`subscriber:`; may be repeated.")]
    category: Annotated[_Values, Field(description="`category:`; may be repeated.")]
    state: Annotated[_Values, Field(description="`state:`; may be repeated; `any` for all.")]
    since: Annotated[
        str | None,
        Field(
            max_length=100,
            description="`2h`, `3d`, or a time; without a zone it is UTC.",
            examples=["2h"],
        ),
    ] = None
    until: Annotated[str | None, Field(max_length=100, description="The same, exclusive.")] = None

    def query(self, *, rows: bool = False) -> Query:
        """The question; an error tells its place in `q`. `rows`: asked of live messages."""
        now = datetime.now(UTC)
        try:
            return with_options(
                parse(self.q, now=now, rows=rows),
                now=now,
                queue=self.queue,
                subscription=self.subscription,
                subscriber=self.subscriber,
                category=self.category,
                state=self.state,
                since=self.since,
                until=self.until,
                rows=rows,
            )
        except FilterError as error:
            error.text = self.q  # type: ignore[attr-defined]
            raise


REPEATED = frozenset({"subscription", "queue", "subscriber", "category", "state"})
"""Parameters that may be given several times: the same word again is OR."""

Place = Annotated[
    str | None,
    Field(max_length=PLACE_CHARS_MAX, description="The `cursor` of the page before."),
]


class Page(Filter):
    """A page of a list."""

    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT
    offset: Annotated[
        int, Field(ge=0, le=OFFSET_MAX, description="Beyond this, go on with `cursor`.")
    ] = 0
    cursor: Place = None
    after: Place = None


class GroupsPage(Filter):
    """How many groups."""

    limit: Annotated[int, Field(ge=1, le=GROUPS_LIMIT_MAX)] = 50


Kind = Literal["json", "jsonl", "csv", "pytest"]


class ExportFilter(Filter):
    """What is exported, and how."""

    kind: Annotated[Kind, Field(alias="as")] = "json"


class Change(Form):
    """What becomes of a message. The original is kept: this makes a revision."""

    payload_text: Annotated[
        str | None, Field(description="The new body, these characters exactly.")
    ] = None
    payload_base64: Annotated[str | None, Field(description="The new body, any bytes.")] = None
    patch: Annotated[
        list[dict[str, Any]] | None,
        Field(
            max_length=1000,
            description="A JSON Patch (RFC 6902).",
            examples=[[{"op": "replace", "path": "/price", "value": 0}]],
        ),
    ] = None
    transform: Annotated[
        str | None,
        Field(
            max_length=512,
            description="One that the setting `transforms` names.",
            examples=["shop.mend:price"],
        ),
    ] = None
    set_headers: Annotated[dict[str, str], Field(default_factory=dict, max_length=100)]
    unset_headers: Annotated[list[str], Field(default_factory=list, max_length=100)]
    not_idempotent: bool = False


class ReplayBody(Form):
    """How a replay is meant."""

    to: Annotated[
        str | None, Field(max_length=255, description="Another queue, for this pass only.")
    ] = None
    original: Annotated[bool, Field(description="The first bytes, not the newest revision.")] = (
        False
    )
    dry_run: Annotated[bool, Field(description="Say what would be done.")] = False
    force: Annotated[bool, Field(description="Pass the gates; needs `reason`.")] = False
    include_poison: Annotated[
        bool, Field(description="Also letters that may kill their worker.")
    ] = False
    reason: Reason = None
    wait: Annotated[
        float | None,
        Field(gt=0, le=WAIT_MAX, description="Seconds to wait for the outcome; scope `inspect`."),
    ] = None


class ChangedReplayBody(ReplayBody):
    """A replay with a change: one revision for each letter, then sent. Needs scope `edit`, too."""

    change: Change | None = None


class BulkReplayBody(ChangedReplayBody):
    """A replay of all that the filter takes."""

    all: Annotated[bool, Field(description="Every letter; in place of a filter.")] = False
    rate: Annotated[float | None, Field(gt=0, le=RATE_MAX, description="Letters a second.")] = None
    cursor: Cursor = None


class ReplayIdsBody(ChangedReplayBody):
    """A replay of named letters."""

    ids: Identifiers


class PurgeOptions(Form):
    """How a purge is meant."""

    hard: Annotated[bool, Field(description="Delete at once, for good.")] = False
    dry_run: Annotated[bool, Field(description="Say what would be done.")] = False
    reason: Reason = None


class PurgeFilter(Filter, PurgeOptions):
    """A purge of all that the filter takes."""

    all: Annotated[bool, Field(description="Every letter; in place of a filter.")] = False
    cursor: Cursor = None


class PurgeIdsBody(PurgeOptions):
    """A purge of named letters."""

    ids: Identifiers


class ReasonBody(Form):
    """Why, and nothing else."""

    reason: Reason = None


class IdsBody(ReasonBody):
    """Named letters, or rows."""

    ids: Identifiers


class MarkBody(ReasonBody):
    """What is said about letters. An empty owner or triage takes it away."""

    open: Annotated[bool, Field(description="Open again; lifts the replay limit.")] = False
    review: Annotated[bool, Field(description="For somebody to look at.")] = False
    owner: Annotated[str | None, Field(max_length=255)] = None
    triage: Annotated[str | None, Field(max_length=64)] = None
    note: Annotated[str | None, Field(max_length=8000)] = None


class MarkIdsBody(MarkBody):
    """Marks for named letters."""

    ids: Identifiers


class InspectBody(Form):
    """One letter, with what is masked if `reveal` says so; that is recorded."""

    reveal: bool = False
    reason: Reason = None


class ExportBody(InspectBody):
    """An export, with what is masked if `reveal` says so; that is recorded."""

    kind: Annotated[Kind, Field(alias="as")] = "json"


class ImportOptions(Form):
    """How an import is meant."""

    dry_run: Annotated[bool, Field(description="Say what would be done.")] = False
    reason: Reason = None


class EditBody(Change):
    """An edit of one letter."""

    dry_run: Annotated[bool, Field(description="Show what would change.")] = False
    reason: Reason = None
