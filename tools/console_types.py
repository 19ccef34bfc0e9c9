"""Write the TypeScript types of the console's answers from its OpenAPI document: `python -m tools.console_types`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from serve_apps.http.console.openapi import schemas

PAGE = Path(__file__).parents[1] / "serve_apps/http/console/client/src/answers.ts"
HEAD = "// Made by `python -m tools.console_types` from the server's OpenAPI document. Do not edit.\n"
_NAMES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def types_text() -> str:
    """Return the whole file."""
    return HEAD + "".join(f"\n{_definition(name, schema)}" for name, schema in schemas().items())


def _definition(name: str, schema: dict[str, Any]) -> str:
    comment = _comment(schema.get("description", ""), "")
    if "properties" not in schema:
        return f"{comment}export type {name} = {_type(schema)};\n"
    required = set(schema.get("required", ()))
    lines = [
        f"{_comment(field.get('description', ''), '  ')}  {_key(key)}{'' if _is_there(key, field, required) else '?'}: "
        f"{_type(field)};\n"
        for key, field in schema["properties"].items()
    ]
    return f"{comment}export interface {name} {{\n{''.join(lines)}}}\n"


def _is_there(key: str, field: dict[str, Any], required: set[str]) -> bool:
    """Return whether an answer always has a field: a field with a default is written too, one that is unset is not."""
    return key in required or "default" in field


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join("null" if value is None else f'"{value}"' for value in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " | ".join(dict.fromkeys(_type(option) for option in options))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_NAMES[name] for name in kind)
    match kind:
        case "array" if schema.get("prefixItems"):
            return f"[{', '.join(map(_type, schema['prefixItems']))}]"
        case "array":
            inner = _type(schema["items"]) if isinstance(schema.get("items"), dict) else "unknown"
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        case "object":
            inner = schema.get("additionalProperties")
            return f"Record<string, {_type(inner) if isinstance(inner, dict) else 'unknown'}>"
        case str():
            return _NAMES[kind]
    return "unknown"


def _comment(text: str, indent: str) -> str:
    line = " ".join(text.split()).replace("*/", "* /")
    return f"{indent}/** {line} */\n" if line else ""


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_]\w*", key) else f'"{key}"'


if __name__ == "__main__":
    PAGE.write_text(types_text(), encoding="utf-8")
