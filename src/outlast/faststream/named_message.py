"""A MANUAL handler `(msg, body: …)` whose `msg` has no annotation: the message itself is meant,
for without it the handler could not settle. FastStream would look for a field `msg` in the body.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

from faststream import Context

from outlast.faststream.message import OutboxMessage

_NAME = "msg"
_INJECTED = Annotated[OutboxMessage, Context("message")]


def inject_named_message(call: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, with its bare `msg` next to an annotated parameter bound to the message."""
    try:
        signature = inspect.signature(call, eval_str=True)
    except (TypeError, ValueError, NameError):
        return call
    parameters = signature.parameters
    named = parameters.get(_NAME)
    if named is None or named.annotation is not named.empty or named.default is not named.empty:
        return call
    if all(p.annotation is p.empty for p in parameters.values()):
        return call

    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def handler(*args: Any, **kwargs: Any) -> Any:
            return await call(*args, **kwargs)

    else:

        @wraps(call)
        def handler(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

    handler.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            p.replace(annotation=_INJECTED) if p.name == _NAME else p for p in parameters.values()
        ],
    )
    return handler
