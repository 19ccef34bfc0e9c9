"""`Closing`: ends nats-py's reconnecting after `close`, where its cancellation was lost (`storage/cancellation.py`)."""

import asyncio
import logging

_log = logging.getLogger(__name__)


class Closing:
    """`on_error` is the connection's error_cb. Set `closed` before the connection is closed."""

    def __init__(self) -> None:
        self.closed = False

    async def on_error(self, error: Exception) -> None:
        """Raises CancelledError once it is closed: nats-py's loop ends by it."""
        _log.debug("nats: %r", error)
        if self.closed:
            raise asyncio.CancelledError
