"""Generate the table of `docs/models.md` from the families: `python -m tools.models_page docs/models.md`."""

from __future__ import annotations

import inspect

from actors.megatron.families.registry import FAMILIES
from tools.page_command import update_page

BEGIN = "<!-- made by tools.models_page -->\n"
END = "\n## "
HEAD = ("class in `config.json`", "models", "architecture")


def document(page: str) -> str:
    """Return the page with a new table."""
    before, _, after = page.partition(BEGIN)
    rest = after[after.index(END) :]
    rows = [(f"`{name}`", inspect.getdoc(family), _summary(family)) for name, family in FAMILIES.items()]
    lines = (HEAD, ["---"] * len(HEAD), *rows)
    return before + BEGIN + "\n" + "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines) + rest


def _summary(family: object) -> str:
    """Return the first line of the family's file."""
    module = inspect.getmodule(type(family))
    return (inspect.getdoc(module) or "").partition("\n")[0]


if __name__ == "__main__":
    update_page(__doc__, document)
