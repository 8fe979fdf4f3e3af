"""The SQL of one outbox table, made once: identifiers from the Table, everything else is bound.

PAIR fences: the lease token is compared pairwise with the group through a hashed subplan. It is
wrapped in COALESCE because a plain comparison would prove "leased" and let the planner walk the
index of leases.
"""

from collections.abc import Callable, Iterable

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql

from outlast.model.dead_letter import COUNT_MAX


def _readable(column: str) -> str:
    """An instant a client can read: infinities and years before Christ are no `datetime`."""
    return f"least(greatest({column}, 'epoch'), '9999-01-01 00:00+00')"


ROW = (
    "t.id, t.queue, t.payload, t.headers, t.attempts_count, t.deliveries_count, "
    f"{_readable('t.created_at')}, {_readable('t.next_attempt_at')}, t.first_attempt_at, "
    "t.last_attempt_at, t.acquired_at, t.timer_id"
)
_ZERO = "'00000000-0000-0000-0000-000000000000'::uuid"

_UNNEST_PAIRS = "unnest($1::bigint[], $2::uuid[]) u(i, k)"


def token_of(alias: str) -> str:
    """The row's token, as it is compared."""
    return f"coalesce({alias}.acquired_token, {_ZERO})"


def owned(alias: str) -> str:
    """The rows of the group that are still under their token."""
    return (
        f"{alias}.id = any($1::bigint[]) "
        f"and (({alias}.id, {token_of(alias)}) in (select i, k from {_UNNEST_PAIRS})) is true"
    )


_PAIR = owned("t")

LOCKED = "t.id = any(array(select l.id from l))"
"""The rows that `lock_rows` locked. An array, because a join lets a planner that believes the table
empty read all of it."""

ANSWER = (
    "select count(*), case when count(*) <> cardinality($1) then array_agg(id) end, "
    "case when count(*) <> cardinality($1) then array_agg(tok) end from d"
)
"""One row back, and the settled pairs only when some are missing."""

LETTER_PARAMETERS: tuple[tuple[str, str, str], ...] = (
    ("failure_reason", "text", "reason"),
    ("last_exception", "text", "failure.last_exception"),
    ("subscriber", "text", "subscriber"),
    ("consumer_instance", "text", "consumer_instance"),
    ("consumer_version", "text", "consumer_version"),
    ("message_id", "text", "message_id"),
    ("event_type", "text", "event_type"),
    ("fingerprint", "text", "failure.fingerprint"),
    ("failure_category", "text", "failure.category"),
    ("error_type", "text", "failure.error_type"),
    ("error_message", "text", "failure.error_message"),
    ("stack_trace", "text", "failure.stack_trace"),
    ("http_status", "int", "failure.http_status"),
    ("attempts_count", "int", "attempts_count"),
    ("first_failure_at", "timestamptz", "first_failure_at"),
    ("last_failure_at", "timestamptz", "last_failure_at"),
)
"""Column, type and attribute of `Letter`, in the order of the parameters."""

_LETTER_COPIES = {
    "original_id": "d.id",
    "queue": "d.queue",
    "payload": "d.payload",
    "headers": "d.headers",
    "deliveries_count": "d.deliveries_count",
    "created_at": "d.created_at",
    "timer_id": "d.timer_id",
    "total_deliveries": f"least(d.deliveries_count, {COUNT_MAX})",
}
"""The columns the statement copies from the row."""

_AT_LEAST_NOW = {"first_failure_at", "last_failure_at"}


def known(column: str) -> str:
    """What the worker knows for this column of the letter; a row that was never run has no hour."""
    return f"coalesce(a.{column}, now())" if column in _AT_LEAST_NOW else f"a.{column}"


def qualified(table: Table) -> str:
    """The table's quoted name."""
    # not the default style: it would double a percent sign in a name
    dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    return str(dialect.identifier_preparer.format_table(table))


class Statements:
    """Every statement on one outbox table."""

    def __init__(self, outbox: Table, dlq: Table | None, dlq_columns: Iterable[str] = ()) -> None:
        self.table = t = qualified(outbox)
        # an absurd counter may not keep its queue from being claimed
        counted = "deliveries_count = least(t.deliveries_count, 9223372036854775806) + 1"
        self.claim = (
            f"update {t} t set acquired_token = $1, acquired_at = now(), {counted} "
            "where t.ctid = any(array(select r.ctid from unnest($2::text[], $3::int[]) q(name, n) "
            f"cross join lateral (select o.ctid from {t} o where o.queue = q.name "
            "and o.acquired_token is null and o.next_attempt_at <= now() "
            "order by o.next_attempt_at, o.id limit q.n for update skip locked) r limit $4)) "
            f"and t.acquired_at is null returning {ROW}"
        )
        self.read_back = (
            f"select {ROW} from {t} t where t.queue = any($1::text[]) and t.acquired_token = $2"
        )
        self.backend_is_gone = "select not exists (select from pg_stat_activity where pid = $1)"
        # one scan by id each and no join: a planner that trusts its statistics repeats the scan
        # for every row of the other side
        ttl = "make_interval(secs => ($3::float8[])[array_position($2::bigint[], o.id)])"
        self.take_over = (
            f"with l as materialized (select o.id from {t} o where o.id = any($2::bigint[]) "
            f"and o.acquired_at not between now() - {ttl} and now() + {ttl} "
            f"for update skip locked) update {t} t set acquired_token = $1, acquired_at = now(), "
            f"{counted} where {LOCKED} returning {ROW}"
        )
        # a row may be parked at 'infinity', which no subtraction takes
        due = (
            "least(greatest(p.next_attempt_at, now() - interval '1 day'), "
            "now() + interval '100 years')"
        )
        self.peek = (
            f"select q.name, extract(epoch from {due} - now())::float8, now() "
            "from unnest($1::text[]) q(name) cross join lateral ("
            f"select o.next_attempt_at from {t} o "
            "where o.queue = q.name and o.acquired_token is null "
            "order by o.next_attempt_at, o.id limit $2) p"
        )
        self.walk = self._walk(t)
        self._settles(t)
        if dlq is not None:
            self._letters(t, qualified(dlq), frozenset(dlq_columns))

    @staticmethod
    def _walk(t: str) -> str:
        expired = (
            "w.acquired_at not between now() - make_interval(secs => q.ttl) "
            "and now() + make_interval(secs => q.ttl)"
        )
        return (
            "select q.name, count(*), array_agg(w.id) filter (where " + expired + "), "
            "min(extract(epoch from w.acquired_at - now())::float8 + q.ttl) "
            f"filter (where not ({expired})), "
            # the place to go on must be one that a client can name
            "greatest(max(w.next_attempt_at), '0001-01-01 00:00+00'), "
            "(array_agg(w.id order by w.next_attempt_at desc, w.id desc))[1] "
            "from unnest($1::text[], $2::float8[], $3::timestamptz[], $4::bigint[], $5::int[]) "
            "q(name, ttl, at, id, n) "
            f"cross join lateral (select o.id, o.next_attempt_at, o.acquired_at from {t} o "
            "where o.queue = q.name and o.acquired_token is not null "
            "and (o.next_attempt_at, o.id) > (q.at, q.id) "
            "order by o.next_attempt_at, o.id limit q.n) w group by q.name"
        )

    def _settles(self, t: str) -> None:
        again = "acquired_token = null, acquired_at = null"
        back = f"{again}, deliveries_count = greatest(t.deliveries_count - 1, 0)"
        # the entry of the row's own lease: the client puts each token's entries together
        place = (
            "array_position($1::bigint[], t.id, "
            f"array_position($2::uuid[], coalesce(t.acquired_token, {_ZERO})))"
        )
        later = (
            f"{again}, (next_attempt_at, attempts_count, first_attempt_at, last_attempt_at) = "
            "(select now() + make_interval(secs => ($3::float8[])[a.n]), ($4::bigint[])[a.n], "
            "($5::timestamptz[])[a.n], ($6::timestamptz[])[a.n] "
            f"from (select {place} offset 0) a(n))"
        )
        self.ack = _plain(f"delete from {t} t where {_PAIR} returning t.id, t.acquired_token tok")
        self.extend = _plain(
            f"update {t} t set acquired_at = now() where {_PAIR} "
            "returning t.id, t.acquired_token tok"
        )
        # these write over the token, and a join that would keep it is quadratic where a planner
        # believes the table empty: the few incomplete answers read it in the statement's snapshot
        answer = (
            "select count(*), case when count(*) <> cardinality($1) "
            "then array_agg(id order by id) end, case when count(*) <> cardinality($1) then "
            f"(select array_agg(o.acquired_token order by o.id) from {t} o "
            "where o.id = any(array_agg(d.id))) end from d"
        )
        self.release = f"with d as (update {t} t set {back} where {_PAIR} returning t.id) {answer}"
        postponed = f"{back}, next_attempt_at = now() + make_interval(secs => $3::float8)"
        self.postpone = (
            f"with d as (update {t} t set {postponed} where {_PAIR} returning t.id) {answer}"
        )
        self.retry = f"with d as (update {t} t set {later} where {_PAIR} returning t.id) {answer}"
        skipping: Callable[[str], str] = lambda write: _skipping(t, write)  # noqa: E731
        self.ack_skipping = skipping(f"delete from {t} t where {LOCKED} returning t.id")
        self.extend_skipping = skipping(
            f"update {t} t set acquired_at = now() where {LOCKED} returning t.id"
        )
        self.release_skipping = skipping(f"update {t} t set {back} where {LOCKED} returning t.id")
        self.postpone_skipping = skipping(
            f"update {t} t set {postponed} where {LOCKED} returning t.id"
        )
        self.retry_skipping = skipping(
            f"update {t} t set {later} where {LOCKED} and {_PAIR} returning t.id"
        )

    def _letters(self, t: str, dlq: str, present: frozenset[str]) -> None:
        values = dict(_LETTER_COPIES)
        for name, _, _ in LETTER_PARAMETERS:
            values[name] = known(name)
        columns = [name for name in values if name in present]
        arrays = ", ".join(
            f"${number}::{kind}[]" for number, (_, kind, _) in enumerate(LETTER_PARAMETERS, start=3)
        )
        names = ", ".join(name for name, _, _ in LETTER_PARAMETERS)
        self.letter_insert = (
            f"insert into {dlq} ({', '.join(columns)}) "
            f"select {', '.join(values[name] for name in columns)}"
        )
        """Without its FROM: `d` is the deleted row, `a` what the worker knows."""
        insert = (
            f"i as ({self.letter_insert} "
            f"from d join unnest($1::bigint[], $2::uuid[], {arrays}) a(id, tok, {names}) "
            "on a.id = d.id and a.tok = d.tok)"
        )
        row = "t.id, t.queue, t.payload, t.headers, t.deliveries_count, t.created_at, t.timer_id"
        self.bury = (
            f"with d as (delete from {t} t where {_PAIR} returning {row}, t.acquired_token tok), "
            f"{insert} {ANSWER}"
        )
        self.bury_skipping = _skipping(
            t, f"delete from {t} t where {LOCKED} returning {row}, t.acquired_token tok", insert
        )


def _plain(write: str) -> str:
    return f"with d as ({write}) {ANSWER}"


def lock_rows(t: str) -> str:
    """The beginning of a statement that passes over locked rows."""
    return (
        f"with l as materialized (select o.id, o.acquired_token tok from {t} o "
        f"where {owned('o')} for update of o skip locked)"
    )


def skipping_answer(t: str) -> str:
    """Its end. By pair: settled, or still held by us but locked, or lost."""
    return (
        "select u.i, u.k, d.id is not null, d.id is null and o.id is not null "
        f"from {_UNNEST_PAIRS} left join (d join l on l.id = d.id) on d.id = u.i and l.tok = u.k "
        f"left join {t} o on o.id = u.i and o.id = any($1::bigint[]) and {token_of('o')} = u.k"
    )


def _skipping(t: str, write: str, *more: str) -> str:
    rest = "".join(f", {part}" for part in more)
    return f"{lock_rows(t)}, d as ({write}){rest} {skipping_answer(t)}"
