"""`LimitedHttp`: uvicorn's HTTP over httptools, which by itself takes headers of any length into memory."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 * 1024
"""Bytes of a request before its body."""


class LimitedHttp(HttpToolsProtocol):
    """Answers 400 to a longer head, and closes the connection, before anybody is asked for a token."""

    _head, _in_head = 0, True

    def on_message_begin(self) -> None:
        self._head, self._in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            raise ValueError(f"the head of a request has {MOST_HEAD:,} bytes at most")
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head += len(data) if self._in_head else 0
        if self._in_head and self._head > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("Invalid HTTP request received.")
