"""Nothing that comes over a wire chooses code, a path or a URL: no module reads pickles, and a prompt names none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import UnknownGrader
from schemas.inbox import InboxPrompt
from slime_events.core.config.reward import RewardSettings
from slime_events.loop.prompts.inbox_message import read_message
from slime_events.plugins.rewards.registry import check_metadata, resolve
from slime_events.plugins.sample import Sample

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "storage", "slime_events", "actors", "serve_apps")
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "joblib"}
"""They run what they read."""
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load"}
CALLS |= {"asyncio.create_subprocess_shell", "subprocess.getoutput", "subprocess.getstatusoutput"}
CALLS |= {"yaml.load", "runpy.run_path", "runpy.run_module", "pandas.read_pickle", "pd.read_pickle"}
ALLOWED = {
    "serve_apps/engines/arguments.py: calls runpy.run_path": "a file of SGLang's own",
    "slime_events/core/config/yaml_text.py: calls yaml.load": "with a loader made of SafeLoader",
    "actors/megatron/formats/torch_dist_writer.py: imports pickle": "writes torch's .metadata, and reads none",
    "storage/weights/saved_tensor.py: imports pickle": "calls no function that a file names, and knows few names",
    "storage/weights/torch_dist.py: imports pickle": "reads with an own class for every class that a file names",
    "slime_events/analysis/export/dump.py: imports pickle": "the name of the error of torch.load(weights_only)",
}


def breaches(path: Path, text: str) -> Iterator[str]:
    """Return what could run what it reads."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (
                    f"{path}: imports {alias.name}" for alias in names if alias.name.partition(".")[0] in MODULES
                )
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield f"{path}: imports {module}"
            case ast.Call(func=called, keywords=keywords):
                name, arguments = ast.unparse(called), {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
                if name in CALLS or arguments.get("shell") == "True" or arguments.get("allow_pickle") == "True":
                    yield f"{path}: calls {name}"
                if name == "torch.load" and arguments.get("weights_only") != "True":
                    yield f"{path}: calls torch.load without weights_only"


def test_no_product_code_runs_what_it_reads() -> None:
    breaches_ = [
        breach
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for breach in breaches(path.relative_to(ROOT), path.read_text())
    ]
    assert sorted(set(breaches_)) == sorted(ALLOWED)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import loads",
        "eval(text)",
        "torch.load(path)",
        "subprocess.run(text, shell=True)",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_what_would_is_found(code: str) -> None:
    assert list(breaches(Path("x.py"), code))


@pytest.mark.parametrize(
    "name", ["os:system", "/tmp/own.py:reward", "http://evil.example/grade", "../math", "builtins.eval"]
)
def test_a_prompt_names_no_grader_but_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.plugins.rewards.registry.load_function", lambda *_, **__: pytest.fail("loaded"))
    settings = RewardSettings(rm_type="exact")
    with pytest.raises(UnknownGrader):
        resolve(settings, Sample(metadata={"rm_type": name}))
    own: dict[str, Any] = {"custom_rm_path": name, "rm_url": name, "generate_function_path": name}
    assert resolve(settings, Sample(metadata=own)).name == "exact"


def test_a_prompt_sends_nothing_to_a_url() -> None:
    """A judge behind HTTP is the run's: a prompt may ask for it, where the run has one."""
    with pytest.raises(UnknownGrader, match="no --rm-url"):
        check_metadata(RewardSettings(rm_type="exact"), {"rm_type": "remote_rm", "rm_url": "http://evil.example"})


@pytest.mark.parametrize("field", ["custom_rm_path", "generate_function_path", "source", "group", "sender", "tokens"])
def test_a_message_has_the_fields_of_a_prompt_alone(field: str) -> None:
    prompts, errors = read_message(b'{"key": "k", "prompt": "a", "%s": "x"}' % field.encode(), InboxPrompt)
    assert prompts == []
    assert [error.field for error in errors] == [field]
