"""`parse_yaml`: the plain values of a YAML text. Imported only if a file is read."""

import re
from typing import Any

import yaml

from schemas.errors import InvalidValue


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader that rejects duplicate keys, reads dates as text, and reads 1e-6 as a number as slime does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen.add(key.value)
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """Return dicts, lists and scalars. source: names the file. Raises InvalidValue with the line and the problem."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}," if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InvalidValue(f"{source}{line} is not YAML: {problem}") from error
