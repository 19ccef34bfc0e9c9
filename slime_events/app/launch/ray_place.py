"""`ray_place`: the address of the Ray that a run joins, without joining it."""

from __future__ import annotations

from schemas.errors import InvalidValue, MissingPart


def ray_place(address: str | None) -> str | None:
    """Return HOST:PORT of the Ray at `--ray-address`, or None if the run starts its own. Raises InvalidValue.

    `auto` is the Ray of RAY_ADDRESS, or else the last one that was started on this machine.
    """
    if address in (None, "local"):
        return None
    if address != "auto":
        return address
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError as error:
        raise MissingPart("Ray is not installed: run `make install`, then `slime-events doctor`") from error
    place: str | None = canonicalize_bootstrap_address(address)
    if place is None:
        raise InvalidValue("--ray-address auto: no Ray runs on this machine: start one, or give HOST:PORT")
    return place
