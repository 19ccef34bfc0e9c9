"""`Closing`: stop nats-py from reconnecting after `close`, if its cancellation was lost (`storage/cancellation.py`)."""

import asyncio
import logging

_log = logging.getLogger(__name__)


class Closing:
    """Use `on_error` as the connection's error_cb, and set `closed` before closing the connection."""

    def __init__(self) -> None:
        self.closed = False

    async def on_error(self, error: Exception) -> None:
        """Raise CancelledError if the connection is closed; that ends nats-py's loop."""
        _log.debug("nats: %r", error)
        if self.closed:
            raise asyncio.CancelledError
