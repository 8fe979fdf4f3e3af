"""What is not there: subscriptions that nobody knows, letters that are gone.

In: a verb that found nothing. Out: a refusal that says what there is, or what became of it. A name
that is known and has no letters is no error.
"""

from contextlib import suppress

from outlast.cli.asking import Asked, Wanted
from outlast.cli.frame import ids_of, query_of, settings_of
from outlast.cli.paper import tell, when
from outlast.model.errors import StoreFailure
from outlast.ops import Actor, Desk, DeskError, LetterNotFound
from outlast.ops.subscriptions import UnknownSubscription

_ENDS = {"replayed": "already replayed", "resolved": "already replayed"}


async def need_known(asked: Asked, desk: Desk, actor: Actor, wanted: Wanted) -> None:
    """Refuse a `--subscription` that neither a worker, a message, a letter nor the app names.

    Of a `queue:` that nobody knows it is said: a filter may ask for what is not there.
    """
    options = (*wanted.subscription, *wanted.queue)
    if options:
        try:
            await desk.need_subscription(actor, *options, also=_of_app(asked))
        except UnknownSubscription as error:
            raise DeskError(f"Error: {error}", error.remedy) from None
        return
    words = [word for word in query_of(wanted).words if word.name == "queue" and not word.negated]
    names = [str(condition.value) for word in words for condition in word.alternatives]
    if names:
        try:
            # who may read the letters alone cannot know which queues there are
            with suppress(StoreFailure):
                await desk.need_subscription(actor, *names, also=_of_app(asked))
        except UnknownSubscription as error:
            tell(str(error))
            tell(f"  {error.remedy}")


def _of_app(asked: Asked) -> frozenset[str]:
    app = settings_of(asked).app
    if app is None:
        return frozenset()
    from outlast.faststream.body_check import known_of, load_app  # noqa: PLC0415 - FastStream

    known = known_of(load_app(app))
    return known.queues | known.subscribers


async def not_found(desk: Desk, actor: Actor, text: str) -> LetterNotFound:
    """The error that names the id as it was typed, and what the history knows of it."""
    became = await what_became(desk, actor, text)
    return LetterNotFound(f"DLQ message '{text}' not found.", became or "outlast dlq list")


async def what_became(desk: Desk, actor: Actor, text: str) -> str | None:
    """Of a letter that is gone: how it ended, and when; None where that is not recorded."""
    ids, _ = ids_of([text])
    with suppress(DeskError):
        history = await desk.history(actor, ids[0]) if ids else None
        if history:
            end = history[-1]
            how = _ENDS.get(end.kind, end.kind)
            by = f" by {end.actor}" if end.actor else ""
            return f"{how} at {when(end.at)}{by}: outlast dlq history {ids[0]}"
    return None
