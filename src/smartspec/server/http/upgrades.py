"""uvicorn's connection, with offers of another protocol ignored.

A client may offer one with any request (Java's HttpClient: h2c, with the first of a connection). A
server that ignores the offer answers the request as it is (RFC 9110, 7.8). llhttp instead takes
what follows such a head for the other protocol, and the body is lost. So the head is parsed again
without the offer, by a new parser, and the rest after it.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class UpgradesIgnored(HttpToolsProtocol):
    """A connection that stays HTTP/1.1. CONNECT, which requests a tunnel, is left to the
    application."""

    @property
    def has_offer(self) -> bool:
        """True while the parser is at a head that will be parsed again."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        rest = memoryview(data)  # not copied for each of many heads
        try:
            while rest:
                rest = self._feed(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _feed(self, data: memoryview) -> memoryview:
        """Parse the data up to the end of a head with an offer, and that head without it; return
        what is left."""
        try:
            self.parser.feed_data(data)
            return data[:0]
        except httptools.HttpParserUpgrade as offer:
            (num_read,) = offer.args
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            return data[:0]
        head = [b"%s %s HTTP/%s" % (method, self.url, version)]
        head += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.parser.feed_data(b"\r\n".join([*head, b"", b""]))
        return data[num_read:]
