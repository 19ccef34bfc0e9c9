"""`decompress`: decompress a zstd frame from outside, up to the size that its reader expects.

A frame of some kilobytes can hold gigabytes. Its header states the size, which is checked before memory is allocated.
"""

import zstandard

FRAME_LIMIT = 1 << 30
"""Most bytes in any frame: far more than an event, a segment or a state has."""


def decompress(data: bytes, limit: int = FRAME_LIMIT) -> bytes:
    """Return the content of one zstd frame. Raises ValueError if it is damaged or larger than `limit` bytes."""
    limit = min(limit, FRAME_LIMIT)
    try:
        size = zstandard.frame_content_size(data)
        if size > limit:
            raise ValueError(f"it holds {size:,} bytes, the limit is {limit:,}")
        # If a frame does not state its size, zstd fills a buffer of at most the limit.
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit if size < 0 else 0)
    except zstandard.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error
