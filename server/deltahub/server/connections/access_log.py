"""The log of requests, one line each, without query strings, tokens and signed links."""

import logging
from urllib.parse import quote

from deltahub.server.connections.exchanges import Exchange
from deltahub.server.connections.redaction import redacted

log = logging.getLogger(__name__)


def log_exchange(exchange: Exchange) -> None:
    """Log a request whose answer has ended."""
    scope = exchange.scope
    host, port = scope.get("client") or ("", 0)
    # Quoted last: a secret may follow a character that is escaped then, as in `user:hf_...`.
    path = quote(redacted(scope["path"]))
    log.info(
        '%s:%d - "%s %s HTTP/%s" %d bytes=%d seconds=%.3f',
        host, port, exchange.method, path, scope["http_version"], exchange.status,
        exchange.body_bytes, exchange.seconds,
        extra={
            "fields": {
                "client": host,
                "method": exchange.method,
                "path": path,
                "status": exchange.status,
                "bytes": exchange.body_bytes,
                "seconds": round(exchange.seconds, 6),
            }
        },
    )  # fmt: skip
