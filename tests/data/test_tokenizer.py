"""The checkpoint's tokenizer is the one that AutoTokenizer gives, and its import leaves nothing changed behind."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slime_events.plugins.tokenizer import TokenizerAhead, _lightly, load_tokenizer
from tests.simulation.parts import Letters

ROOT = Path(__file__).parents[2]
LOADED = """
import importlib.metadata, importlib.util, sys
listed, found = importlib.metadata.packages_distributions, importlib.util.find_spec
from slime_events.plugins.tokenizer import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1])
assert "torch" not in sys.modules
assert importlib.metadata.packages_distributions is listed
assert importlib.util.find_spec is found
from transformers import AutoTokenizer
from transformers.utils.import_utils import PACKAGE_DISTRIBUTION_MAPPING as mapping
assert "_found" not in vars(mapping), "all packages were listed for a tokenizer"
assert dict(mapping) == listed()
assert mapping.get("no_such_module", []) == []
plain = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
chat = [{"role": "user", "content": "1+1"}]
assert type(tokenizer) is type(plain)
assert tokenizer.encode("12+30=") == plain.encode("12+30=") != []
assert tokenizer.special_tokens_map == plain.special_tokens_map
assert tokenizer.apply_chat_template(chat, tokenize=False) == plain.apply_chat_template(chat, tokenize=False)
"""


def test_it_is_transformers_own_and_leaves_python_as_it_was() -> None:
    folder = ROOT / "slime_events" / "app" / "demo" / "base"
    done = subprocess.run([sys.executable, "-c", LOADED, str(folder)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


PROXIES = {
    "schemas": 0,
    "storage": 1,  # a module of the NATS client that is loaded when it is looked into
    "slime_events": 2,  # the package's lazy names; `args`, where a name that is not there says which are near
    "actors": 0,
    "serve_apps": 3,  # placeholder modules on machines without a GPU; `GenerateState`, which only raises
}
"""`__getattr__` in product code: none of them passes a call on to another object."""


def test_nothing_stands_in_for_an_object_by_passing_its_attributes_on() -> None:
    """A proxy by `__getattr__` has no `__call__`, no `__len__`, no `__iter__`, and no type that could say so."""
    for room, allowed in PROXIES.items():
        sources = [path.read_text() for path in (ROOT / room).rglob("*.py")]
        assert sum(source.count("def __getattr__") for source in sources) <= allowed, room
        passing = [
            source for source in sources if re.search(r"def __getattr__\(.*\n(.*\n)?\s+return getattr\(self\.", source)
        ]
        assert passing == [], room


def test_what_is_loaded_meanwhile_is_no_tokenizer_itself() -> None:
    public = {name for name in dir(TokenizerAhead) if not name.startswith("_")}
    assert public == {"loaded"}
    assert not callable(TokenizerAhead(lambda: Letters()))


MISTAKES = """
from slime_events.plugins.loss_masks import MultiTurnLossMaskGenerator, loss_masks_of
from slime_events.plugins.tokenizer import TokenizerAhead, TokenizerSource, encode_all, loaded_tokenizer

def called(tokenizer: TokenizerAhead) -> None: tokenizer("x")
def encoded(tokenizer: TokenizerSource) -> None: tokenizer.encode("x")
def many(tokenizer: TokenizerAhead) -> None: encode_all(tokenizer, ["x"])
def masks(tokenizer: TokenizerAhead) -> None: loss_masks_of(tokenizer, "qwen")
def generator(tokenizer: TokenizerAhead) -> None: MultiTurnLossMaskGenerator(tokenizer)
def right(tokenizer: TokenizerSource) -> None: loss_masks_of(loaded_tokenizer(tokenizer), "qwen")
"""


@pytest.mark.soak
def test_to_take_the_one_for_the_other_is_an_error_of_the_type_checker() -> None:
    words = ["-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "-c", MISTAKES]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line]
    assert lines == [5, 6, 7, 8, 9], done.stdout + done.stderr


def test_a_tokenizer_is_read_from_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    folders: list[Any] = []
    monkeypatch.delenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", raising=False)
    monkeypatch.setattr(
        AutoTokenizer, "from_pretrained", lambda folder, **how: folders.append((folder, how)) or Letters()
    )
    assert isinstance(load_tokenizer("folder"), Letters)
    assert folders == [("folder", {"local_files_only": True})]
    assert os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] == "1", "no message names packages that are not needed"


@pytest.mark.parametrize("there", ["torch", "transformers", None])
def test_torch_is_hidden_only_from_a_process_that_has_neither(
    monkeypatch: pytest.MonkeyPatch, there: str | None
) -> None:
    """One that has torch wants a transformers that knows it; and threads beside this one find it."""
    for name in ("torch", "transformers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if there:
        monkeypatch.setitem(sys.modules, there, ModuleType(there))
    before = importlib.util.find_spec, importlib.metadata.packages_distributions
    with _lightly():
        now = importlib.util.find_spec, importlib.metadata.packages_distributions
        assert [module is other for module, other in zip(now, before, strict=True)] == [there is not None] * 2
        if there is None:
            assert importlib.util.find_spec("torch") is None
            assert importlib.util.find_spec("json") is not None
            with ThreadPoolExecutor(1) as beside:
                assert beside.submit(importlib.util.find_spec, "torch").result() is not None
    assert (importlib.util.find_spec, importlib.metadata.packages_distributions) == before


def test_nobody_waits_for_one_that_is_being_loaded() -> None:
    may_end = threading.Event()

    def load() -> Letters:
        assert may_end.wait(20.0)
        return Letters()

    ahead = TokenizerAhead(load)  # type: ignore[arg-type]
    may_end.set()
    assert isinstance(ahead.loaded, Letters)


def test_the_thread_that_loads_ends_with_it() -> None:
    threads: list[threading.Thread] = []

    def load() -> Letters:
        threads.append(threading.current_thread())
        return Letters()

    assert isinstance(TokenizerAhead(load).loaded, Letters)  # type: ignore[arg-type]
    threads[0].join(20.0)
    assert not threads[0].is_alive()
