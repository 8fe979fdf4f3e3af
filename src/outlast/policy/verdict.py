"""From what a handler did to an `Outcome`. The one guarded place where user code is asked:
the retry strategy and the exception renderer.
"""

from dataclasses import dataclass
from typing import Any

from outlast.model.delivery import Attempt
from outlast.model.outcome import REJECTED, UNDECODABLE, Outcome, Terminal
from outlast.policy.decide import after_failure
from outlast.policy.describe import Renderer, describe


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Bound to one subscription: its strategy, its name, the broker's renderer."""

    strategy: Any
    subscriber: str | None = None
    renderer: Renderer | None = None

    def failed(self, attempt: Attempt, exception: BaseException | None) -> Outcome:
        """A failed attempt: the strategy decides between another one and a dead letter."""
        failure = describe(exception, subscriber=self.subscriber, renderer=self.renderer)
        return after_failure(self.strategy, attempt, exception, failure)

    def rejected(self, exception: BaseException | None = None) -> Terminal:
        """Rejected by the handler or the policy: the strategy is not asked."""
        return self._terminal(REJECTED, exception)

    def undecodable(self, exception: BaseException | None) -> Terminal:
        """The body cannot be read, and will not be readable later."""
        return self._terminal(UNDECODABLE, exception)

    def _terminal(self, reason: str, exception: BaseException | None) -> Terminal:
        failure = describe(
            exception, subscriber=self.subscriber, renderer=self.renderer, reason=reason
        )
        return Terminal(reason, failure)
