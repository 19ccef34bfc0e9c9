"""`doc`: the text of a field, at the field."""

import msgspec


def doc(text: str) -> msgspec.Meta:
    """Return the description of a field, for `Annotated[T, doc("...")]`; generated pages and JSON Schema show it."""
    return msgspec.Meta(description=text)
