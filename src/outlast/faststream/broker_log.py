"""The broker's log lines in FastStream's way: logger `outbox`, columns `queue` and `message_id`."""

import logging
from functools import partial
from typing import Any

from outlast.faststream.upstream import (
    ContextRepo,
    DefaultLoggerStorage,
    get_broker_logger,
    make_logger_state,
)

_MESSAGE_ID_WIDTH = 10


class OutboxLogStorage(DefaultLoggerStorage):
    """Makes the default logger; the queue column is as wide as the longest registered queue."""

    def __init__(self) -> None:
        super().__init__()
        self._queue_width = len("queue")

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """A subscriber is there, with this log context."""
        self._queue_width = max(self._queue_width, len(params.get("queue", "")))

    def get_logger(self, *, context: ContextRepo) -> Any:
        """The logger, made once."""
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="outbox",
                default_context={"queue": ""},
                message_id_ln=_MESSAGE_ID_WIDTH,
                fmt=(
                    "%(asctime)s %(levelname)-8s - "
                    f"%(queue)-{self._queue_width}s | %(message_id)-{_MESSAGE_ID_WIDTH}s - "
                    "%(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_outbox_logger_state = partial(make_logger_state, default_storage_cls=OutboxLogStorage)

package_logger = logging.getLogger("outlast")
