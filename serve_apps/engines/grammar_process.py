"""`python -m serve_apps.engines.grammar_process`: the process of `Grammars`.

It compiles one grammar after the other, as SGLang's xgrammar back-end does. Then it walks through the first tokens of
an answer: an ambiguous rule may compile at once and take seconds for each token.
"""

from __future__ import annotations

import json
import random
import re
import socket
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from schemas.text import message_text
from serve_apps.engines.grammars import Question, Verdict
from slime_events.core.child.frames import receive_frame, send_frame
from slime_events.core.child.inside import connect
from slime_events.core.child.limits import limit
from slime_events.plugins.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import xgrammar

MEMORY_GB = 4.0
"""Limit of private memory, including imported packages."""
WALK_TOKENS = 256
WALK_S = 1.0
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
"""Time and source line at the start of xgrammar's messages."""
STEP_S = 0.02
"""Average seconds per token above which an engine that serves other requests cannot accept a grammar."""


def main(descriptor: str, parent: str, checkpoint: str, vocabulary: str) -> None:
    """Answer until the socket closes."""
    connection = connect(descriptor, parent)
    try:
        compiler = Compiler(checkpoint, int(vocabulary) or None)
    except Exception as error:  # any error at the start is sent to the waiting client
        _send(connection, Verdict(ready=False, error=f"{type(error).__name__}: {message_text(error)}"))
        return
    limit(MEMORY_GB)
    _send(connection, Verdict())
    while (question := receive_frame(connection)) is not None:
        _send(connection, Verdict(error=compiler.error_of(msgspec.msgpack.decode(question, type=Question))))


def _send(connection: socket.socket, verdict: Verdict) -> None:
    send_frame(connection, msgspec.msgpack.encode(verdict))


class Compiler:
    """xgrammar's compiler for one model. Raises ImportError, InvalidValue or RuntimeError if there is none for it."""

    def __init__(self, checkpoint: str, vocabulary: int | None) -> None:
        import xgrammar

        self._xgrammar, tokenizer = xgrammar, load_tokenizer(checkpoint)
        self._vocabulary = vocabulary or len(tokenizer)
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=self._vocabulary)
        self._ends = list(info.stop_token_ids)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def error_of(self, question: Question) -> str:
        """Return why a grammar cannot be used; empty if it can."""
        try:
            return self._walk(self._compile(question))
        except MemoryError:
            return f"it is too large: it took more than {MEMORY_GB:g} GB to compile"
        except (RuntimeError, ValueError) as error:
            return _PLACE.sub("", message_text(error)).strip() or type(error).__name__
        except Exception as error:  # the text may decode to any JSON value
            return f"{type(error).__name__}: {message_text(error)}"

    def _compile(self, question: Question) -> xgrammar.CompiledGrammar:
        kind, text = question.kind, question.text
        if kind == "json_schema":
            if text == "$$ANY$$":
                return self._compiler.compile_builtin_json_grammar()
            json.loads(text)
            return self._compiler.compile_json_schema(text, any_whitespace=True)
        if kind == "regex":
            return self._compiler.compile_regex(text)
        if kind == "ebnf":
            return self._compiler.compile_grammar(text)
        return self._compiler.compile_structural_tag(self._structural_tag(text))

    def _structural_tag(self, text: str) -> xgrammar.StructuralTag | str:
        """Convert the older form, which has `structures` and `triggers`."""
        tag = json.loads(text)
        if not isinstance(tag, dict) or "structures" not in tag:
            return text
        items = [
            self._xgrammar.StructuralTagItem(
                begin=item["begin"], schema=json.dumps(item.get("schema") or {}), end=item["end"]
            )
            for item in tag["structures"]
        ]
        return self._xgrammar.StructuralTag.from_legacy_structural_tag(items, tag["triggers"])

    def _walk(self, compiled: xgrammar.CompiledGrammar) -> str:
        """Return the reason if tokens are slow or an answer cannot continue; else nothing."""
        import numpy as np

        matcher = self._xgrammar.GrammarMatcher(compiled)
        mask = self._xgrammar.allocate_token_bitmask(1, self._vocabulary)
        chance, begun, spent, steps = random.Random(0), time.perf_counter(), 0.0, 0
        while steps < WALK_TOKENS and time.perf_counter() - begun < WALK_S and not matcher.is_terminated():
            before = time.perf_counter()
            matcher.fill_next_token_bitmask(mask)
            spent += time.perf_counter() - before
            bits = np.unpackbits(mask.numpy().view(np.uint8).ravel(), bitorder="little")[: self._vocabulary]
            can_end = bool(bits[self._ends].any())
            bits[self._ends] = 0
            allowed = np.flatnonzero(bits)
            if not len(allowed) and not can_end:
                return f"no token of the model fits it after {steps} tokens"
            if not len(allowed):
                break
            before = time.perf_counter()
            matcher.accept_token(int(allowed[chance.randrange(len(allowed))]))
            spent, steps = spent + time.perf_counter() - before, steps + 1
        if steps and spent / steps > STEP_S:
            return (
                f"it is too slow: a token takes {spent / steps * 1000:.0f} ms, at most {STEP_S * 1000:.0f} are allowed"
            )
        return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
