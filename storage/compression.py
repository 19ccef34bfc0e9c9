"""`decompress`: a zstd frame from outside, never larger than its reader expects.

A frame of some kilobytes can hold gigabytes, and says so itself: nothing is allocated before that is compared.
"""

import zstandard

FRAME_LIMIT = 1 << 30
"""Bytes that any frame may hold: far more than an event, a segment or a state of ours."""


def decompress(data: bytes, limit: int = FRAME_LIMIT) -> bytes:
    """Return what is in one zstd frame. Raises ValueError where that is damaged or larger than `limit` bytes."""
    limit = min(limit, FRAME_LIMIT)
    try:
        size = zstandard.frame_content_size(data)
        if size > limit:
            raise ValueError(f"it says that it holds {size:,} bytes, and may hold {limit:,}")
        # Where a frame does not say its size, zstd fills a buffer of the limit at most.
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit if size < 0 else 0)
    except zstandard.ZstdError as error:
        raise ValueError(f"no zstd frame: {error}") from error
