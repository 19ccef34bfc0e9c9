"""The checkpoint's tokenizer is the one that AutoTokenizer gives, and its import leaves nothing changed behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
