"""Every door tells the same numbers, whichever moment of a busy day they are asked at."""

import re
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random

import httpx
import pytest
from sqlalchemy import func, insert, select, update

from outlast.api import make_app
from outlast.ops import SCOPES, Actor, Desk
from outlast.ops.tokens import TokenBook, new_token
from outlast.policy.filter_text import parse
from tests.doors.dlq_command import Command

ROUNDS, STEPS_BETWEEN = 4, 6
LISTED = ("open", "needs_review", "escalated")
QUEUES = ("orders", "mail", 'a"b\\c')
CATEGORIES = ("EXTERNAL", "VALIDATION", "POISON", None)
FINGERPRINTS = ("v1:1", "v1:2", "v1:3", None)
OPERATOR = Actor("ann", SCOPES)
SAMPLE = re.compile(r"outlast_dlq_(\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Traffic:
    """Letters arrive, are replayed, fail again and are purged, step after step, in a thread."""

    def __init__(self, command):
        self._command, self._random = command, Random(7)
        self._quiet = threading.Lock()
        self._turn = threading.Condition()
        self._steps, self._is_over, self._error = 0, False, None
        self.done = Counter()

    @contextmanager
    def flowing(self):
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._is_over = True
            thread.join()
        assert self._error is None, self._error

    @contextmanager
    def held(self):
        """Between two steps, after some more of them."""
        with self._turn:
            wanted = self._steps + STEPS_BETWEEN
            assert self._turn.wait_for(lambda: self._steps >= wanted or self._error, 60)
        with self._quiet:
            yield

    def _run(self):
        try:
            self._command.database.run(self._flow)
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._turn:
                self._turn.notify_all()

    async def _flow(self, engine):
        desk = Desk(engine, self._command.outbox, self._command.dlq)
        while not self._is_over:
            step = self._random.choice((self._arrive, self._arrive, self._replay, self._fail_again))
            with self._quiet:
                await step(engine, desk)
            self.done[step.__name__] += 1
            with self._turn:
                self._steps += 1
                self._turn.notify_all()

    async def _arrive(self, engine, _desk):
        rows = [self._letter() for _ in range(self._random.randrange(1, 30))]
        async with engine.begin() as connection:
            await connection.execute(insert(self._command.dlq), rows)

    async def _replay(self, _engine, desk):
        queue = self._random.choice(QUEUES[:2])
        await desk.replay_all(OPERATOR, parse(f"queue:{queue} category:EXTERNAL", now=_now()))

    async def _fail_again(self, engine, _desk):
        dlq = self._command.dlq
        back = update(dlq).where(dlq.c.state == "replaying", dlq.c.id % 2 == 0)
        values = {"state": "open", "replayed_as": None, "last_failure_at": _now()}
        async with engine.begin() as connection:
            await connection.execute(back.values(values))

    def _letter(self):
        pick = self._random.choice
        return {
            "original_id": 1,
            "queue": pick(QUEUES),
            "payload": b"{}",
            "deliveries_count": 1,
            "failure_reason": "retry_terminal",
            "failure_category": pick(CATEGORIES),
            "fingerprint": pick(FINGERPRINTS),
            "state": pick(("open", "open", "needs_review", "escalated", "resolved")),
            "created_at": _now(),
        }


def _now():
    return datetime.now(UTC)


def counted(command):
    """The truth: the table itself, counted by queue, category and fingerprint."""
    dlq = command.dlq

    async def body(engine):
        names = (dlq.c.queue, dlq.c.failure_category, dlq.c.fingerprint)
        asked = select(*names, func.count()).where(dlq.c.state.in_(LISTED)).group_by(*names)
        async with engine.connect() as connection:
            return {row[:3]: row[3] for row in map(tuple, await connection.execute(asked))}

    return command.database.run(body)


def by_http(command, *paths):
    """Answers of the API."""
    token = new_token("reader", ["inspect"])

    async def body(engine):
        app = make_app(Desk(engine, command.outbox, command.dlq), TokenBook.parse([token.line]))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://127.0.0.1:8787",
            headers={"Authorization": f"Bearer {token.secret}"},
        ) as caller:
            answers = [await caller.get(path) for path in paths]
        assert {answer.status_code for answer in answers} == {200}
        return answers

    return command.database.run(body)


def samples(text):
    """Family, labels, value."""
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line)
        if found:
            labels = {name: re.sub(r"\\(.)", r"\1", said) for name, said in LABEL.findall(found[2])}
            yield found[1], labels, float(found[3])


def by_queue(stats):
    return {(q["queue"], q["failure_category"]): q["depth"] for q in stats["queues"] if q["depth"]}


def by_cause(groups):
    return {group["fingerprint"]: group["count"] for group in groups["items"]}


def recorded(text):
    return None if text == "not recorded" else text


@pytest.fixture
def command(database, monkeypatch, capsys):
    return Command(database, monkeypatch, capsys)


def test_every_door_tells_the_same_numbers_at_any_moment(command):
    """S2-38: depth, oldest age, categories and causes, while letters arrive and are replayed."""
    command.plant(3, queue="orders", failure_category="VALIDATION", fingerprint="v1:1")
    with Traffic(command).flowing() as traffic:
        for number in range(ROUNDS):
            with traffic.held():
                compare(command, CATEGORIES[number % 3])
    assert min(traffic.done[f"_{name}"] for name in ("arrive", "replay", "fail_again")) > 0


def compare(command, category):
    """Ask everybody."""
    truth = counted(command)
    stats = command.run("dlq", "stats", "--json").document
    groups = command.run("dlq", "groups", "--json").document
    listed = command.run("dlq", "list", "--json", "--limit", 1).document
    narrow = command.run("dlq", "list", "--json", "--category", category).document
    answers = by_http(
        command,
        "/metrics",
        "/api/dlq/stats",
        "/api/dlq/groups",
        "/api/dlq?limit=1",
        f"/api/dlq?category={category}",
    )
    metrics = list(samples(answers[0].text))
    web_stats, web_groups, web_listed, web_narrow = (answer.json() for answer in answers[1:])

    depth = sum(truth.values())
    assert {stats["depth"], web_stats["depth"], listed["total"], web_listed["total"]} == {depth}

    queues = Counter()
    causes = Counter()
    for (queue, name, fingerprint), number in truth.items():
        queues[queue, name] += number
        causes[fingerprint] += number
    scraped = {
        (labels["queue"], recorded(labels["category"])): value
        for family, labels, value in metrics
        if family == "depth" and value
    }
    assert by_queue(stats) == by_queue(web_stats) == scraped == queues
    of_category = sum(number for (_, name), number in queues.items() if name == category)
    assert narrow["total"] == web_narrow["total"] == of_category

    told = {
        recorded(labels["fingerprint"]): value
        for family, labels, value in metrics
        if family == "causes" and labels["fingerprint"] != "other"
    }
    assert by_cause(groups) == by_cause(web_groups) == told == causes

    assert stats["oldest_at"] == web_stats["oldest_at"]
    ages = [value for family, _, value in metrics if family == "oldest_age_seconds"]
    # asked one after the other, by the clock of the database
    assert stats["oldest_age_seconds"] <= max(ages) <= web_stats["oldest_age_seconds"]
