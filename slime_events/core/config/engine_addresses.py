"""`engine_url`: the URL of an SGLang server, from the address that a user gives."""

from urllib.parse import urlsplit

from schemas.errors import InvalidValue


def engine_url(address: str) -> str:
    """Return `http://host:port` for an address with or without a scheme. Raises InvalidValue for anything else."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidValue(f"{address!r} is not host:port: {error}") from error
    if not host or not port or parts.scheme not in ("http", "https") or parts.path.strip("/") or "@" in parts.netloc:
        raise InvalidValue(f"{address!r} is not host:port, such as 10.0.0.5:30000")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
