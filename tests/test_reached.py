"""Find what no command reaches: product modules that nothing imports, public functions and classes that nothing names.

It reads names, without running anything: what product code uses anywhere counts as reached, and so does what the pages
of `docs/` show to users. A module that is kept for a part that is not wired in yet says so in its constant `AWAITS`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from slime_events.app.cli.arguments import COMMANDS, module_of
from slime_events.core.config.installed import parsed
from slime_events.plugins.slime.modules import ANSWERED_BY, SLIME_MODULES, SLIME_PATHS

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "storage", "slime_events", "actors", "serve_apps")
SLIME_MODULES_HERE = "slime_events.plugins.slime.modules"
"""Its table has several names in one text."""
STARTS = ("slime_events", "slime_events.app.cli.main")
SHIMS = "serve_apps.engines.cpu_shims."
"""Packages that an engine's process finds on its path in place of others."""
PLAIN_BASES = {"ABC", "Enum", "Exception", "Generic", "IntEnum", "NamedTuple", "Protocol", "StrEnum", "Struct"}
"""Bases from outside that call no method of a class by a name of their own."""
MOST_OF_ITSELF = 10
"""Uses of a name within its own definition, at most: of a name with more the definition is not looked through."""
AWAITED: set[str] = set()
"""Modules that say `AWAITS`."""
FOR_TESTS = {
    "storage.memory_log": "the reference: defines what every log does, and is what the others are tested against",
}
CALLED_BY_NAME = {
    "eof_received": "by asyncio, of each protocol",
    "check_health": "by Ray Serve",
    "get_replay_topk": "by Megatron's router",
    "tokens_generated": "by the contract of all engines: what was generated but not given away",
}
_WORD = re.compile(r"[\w.:]+")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(eq=False)
class Module:
    """imports: modules, also those that a text such as `package.module:name` names. uses: how often each name is read,
    called or named in a text; an import alone is no use. texts: without spaces.
    """

    tree: ast.Module
    imports: set[str] = field(default_factory=set)
    uses: Counter[str] = field(default_factory=Counter)
    texts: set[str] = field(default_factory=set)

    @property
    def awaits(self) -> bool:
        assigned = (target for node in self.tree.body if isinstance(node, ast.Assign) for target in node.targets)
        return any(isinstance(target, ast.Name) and target.id == "AWAITS" for target in assigned)

    @property
    def is_entry(self) -> bool:
        """`python -m` starts it."""
        return any(isinstance(node, ast.If) and "__main__" in ast.dump(node.test) for node in self.tree.body)

    @classmethod
    def of(cls, tree: ast.Module) -> Module:
        module = cls(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                module.imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                module.imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            else:
                _count(node, module.uses, module.texts)
        module.imports |= {text.partition(":")[0] for text in module.texts}
        return module


def _count(node: ast.AST, uses: Counter[str], texts: set[str]) -> None:
    if isinstance(node, ast.Name):
        uses[node.id] += 1
    elif isinstance(node, ast.Attribute):
        uses[node.attr] += 1
    elif isinstance(node, ast.keyword) and node.arg:
        uses[node.arg] += 1
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORD.fullmatch(node.value):
        texts.add(node.value)
        uses.update(re.split(r"[.:]", node.value))


@cache
def modules() -> dict[str, Module]:
    by_name = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            by_name[name] = Module.of(parsed(path))
    table = by_name[SLIME_MODULES_HERE]
    for target in (target for names in SLIME_MODULES.values() for target in names.values()):
        _count(ast.Constant(target), table.uses, table.texts)
    table.imports |= {text.partition(":")[0] for text in table.texts}
    return by_name


@cache
def pages() -> str:
    """Return the text of all pages for users."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))


def entry_points() -> set[str]:
    """Modules that something other than an import starts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tables = [project["scripts"], *project.get("entry-points", {}).values()]
    named = {target.partition(":")[0] for table in tables for target in table.values()}
    named |= {module_of(command) for command in COMMANDS}
    started = {name for name, module in modules().items() if module.is_entry or name.startswith(SHIMS)}
    return {*STARTS, *named, *started, *re.findall(r"\b\w+(?:\.\w+)+", pages())}


def test_every_module_is_reached_from_a_command() -> None:
    every_module, waiting = modules(), entry_points()
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in every_module and name not in reached:
            reached.add(name)
            waiting |= {*every_module[name].imports, name.rpartition(".")[0]}
    unreached = {name for name, module in every_module.items() if name not in reached and module.tree.body}
    assert unreached - AWAITED == FOR_TESTS.keys(), "delete them, or say what they await"
    assert {name for name, module in every_module.items() if module.awaits} == AWAITED
    assert unreached >= AWAITED, "wired in: they await nothing any more"


def test_files_that_only_the_names_of_slime_need_are_in_folders_of_that_name() -> None:
    def in_wing(name: str) -> bool:
        return ".slime." in name

    answering = {home for answers in ANSWERED_BY.values() for home in answers}
    used = {imported for name, module in modules().items() if not in_wing(name) for imported in module.imports}
    by_path = {target.partition(":")[0] for target in SLIME_PATHS.values()}
    assert {home for home in answering - used - by_path if not in_wing(home)} == set()
    helping = {imported for home in answering for imported in modules()[home].imports}
    kept = {name for name, module in modules().items() if in_wing(name) and module.tree.body}
    assert kept - answering - helping - {SLIME_MODULES_HERE} == set()


def definitions(module: Module) -> Iterator[tuple[Definition, ast.ClassDef | None]]:
    """Public functions, classes and methods, each with its class."""
    for node in module.tree.body:
        if not isinstance(node, Definition):
            continue
        if not node.name.startswith("_"):
            yield node, None
        if isinstance(node, ast.ClassDef):
            inner = (function for function in node.body if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from ((function, node) for function in inner if not function.name.startswith("_"))


@cache
def classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node for module in modules().values() for node in module.tree.body if isinstance(node, ast.ClassDef)
    }


def is_called_from_outside(node: ast.ClassDef) -> bool:
    """Whether a base from another package may call methods of the class by its own names."""
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if name in classes() and name != node.name:
            if is_called_from_outside(classes()[name]):
                return True
        elif name not in PLAIN_BASES:
            return True
    return False


def given_to_users() -> set[str]:
    """Classes and functions that users import: the public API, what tables and docs name."""
    named = {text.partition(":")[2] for module in modules().values() for text in module.texts if ":" in text}
    return modules()["slime_events"].texts | named | set(re.findall(r"\w\.(\w+)[(`]", pages()))


def is_used(node: Definition, everywhere: Counter[str]) -> bool:
    """Whether something else than its own definition names it."""
    if everywhere[node.name] > MOST_OF_ITSELF:
        return True
    within: Counter[str] = Counter()
    for inner in ast.walk(node):
        _count(inner, within, set())
    return everywhere[node.name] > within[node.name]


def test_every_public_name_is_used_by_product_code() -> None:
    everywhere: Counter[str] = Counter()
    for module in modules().values():
        everywhere.update(module.uses)
    public = given_to_users() | CALLED_BY_NAME.keys()
    unreached = []
    for name, module in modules().items():
        for node, owner in definitions(module) if name not in AWAITED | FOR_TESTS.keys() else ():
            if node.name in public or (owner and owner.name in public) or is_used(node, everywhere):
                continue
            registered = any(isinstance(decorator, ast.Call) for decorator in node.decorator_list)
            if not registered and not (owner and is_called_from_outside(owner)):
                unreached.append(f"{name}:{owner.name + '.' if owner else ''}{node.name}")
    assert unreached == []
