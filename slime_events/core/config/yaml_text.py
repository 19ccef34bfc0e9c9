"""`parse_yaml`: plain values of a YAML text. Imported only where a file is read."""

import re
from typing import Any

import yaml

from schemas.errors import InvalidValue


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """No key twice, no dates, and 1e-6 is a number: YAML 1.1 wants a dot in it, slime's reader does not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} stands there twice", key.start_mark
                    )
                seen.add(key.value)
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """Dicts, lists and scalars. source: names the file. Raises InvalidValue with the line and the problem."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}," if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InvalidValue(f"{source}{line} is not YAML: {problem}") from error
