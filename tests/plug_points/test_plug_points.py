"""Test how a user's function is found, and the message if it is not."""

import copy
import functools
import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.errors import NameTaken, PlugPointError, PlugPointMissing
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.args_view import ArgsView, for_one_call
from slime_events.plugins.filters.dynamic_sampling import check_reward_nonzero_std
from slime_events.plugins.loader import OUR_PACKAGES, digest_of, load_function, name_of
from slime_events.plugins.slime.modules import SLIME_MODULES, SLIME_PATHS
from tests import made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    package = tmp_path / "proj_rewards"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(
        "from proj_helper import ONE\ndef reward_func(args, sample): return ONE\nclass Judge:\n"
        "    @staticmethod\n    def grade(args, sample): return 2.0\nLIMIT = 3\n"
    )
    (tmp_path / "proj_helper.py").write_text("ONE = 1.0\n")
    (tmp_path / "custom_rm.py").write_text(
        "import proj_helper\ndef reward_func(args, sample): return proj_helper.ONE\n"
    )
    (tmp_path / "proj_broken.py").write_text("1 / 0\n")
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if name.startswith(("proj_", "user_")):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    "path",
    [
        "proj_rewards.mine:reward_func",
        "proj_rewards.mine.reward_func",
        "proj_rewards/mine.py:reward_func",
        "custom_rm.py",
        "custom_rm.py:reward_func",
    ],
)
def test_every_spelling(folder: Path, path: str) -> None:
    assert load_function(path, default_names=("reward_func",), user_dir=folder)(None, None) == 1.0


def test_dots_behind_the_colon_reach_into_classes(folder: Path) -> None:
    assert load_function("proj_rewards.mine:Judge.grade", user_dir=folder)(None, None) == 2.0
    assert load_function(f"{folder}/proj_rewards/mine.py:Judge.grade")(None, None) == 2.0


def test_the_users_folder_goes_last(folder: Path) -> None:
    load_function("custom_rm.py:reward_func", user_dir=folder)
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("proj_rewards.mine:rewrd_func", "nearest: reward_func"),
        ("proj_rewards.mine:Judge.grad", "nearest: grade"),
        ("proj_rewards.mine:LIMIT", "of type int, not a function"),
        ("proj_reward.mine:reward_func", "nearest: proj_rewards"),
        ("proj_rewards.mien:reward_func", "no module 'proj_rewards.mien'"),
        ("custom_rmm.py", "nearest: custom_rm.py"),
        ("proj_helper.py", "has no reward_func"),
        ("reward_func", "module:function"),
        (":f", "module:function"),
        ("slime.rollout.filter_hub.nope", "check_reward_nonzero_std"),
    ],
)
def test_what_is_missing_is_named_with_its_neighbours(folder: Path, path: str, message: str) -> None:
    with pytest.raises(PlugPointMissing) as caught:
        load_function(path, default_names=("reward_func",), user_dir=folder)
    assert message in str(caught.value)


@pytest.mark.parametrize("path", ["proj_broken:f", "proj_broken.py:f"])
def test_a_module_that_breaks_is_named_with_its_cause(folder: Path, path: str) -> None:
    with pytest.raises(PlugPointError, match="ZeroDivisionError") as caught:
        load_function(path, user_dir=folder)
    assert not isinstance(caught.value, PlugPointMissing)


@pytest.mark.parametrize("name", OUR_PACKAGES)
def test_a_file_with_one_of_our_names_must_be_renamed(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text("def f(): pass\n")
    for path in (f"{name}:f", f"{name}.py:f", "custom_rm.py:reward_func"):
        with pytest.raises(NameTaken, match=f"my_{name}"):
            load_function(path, user_dir=folder)


def test_a_folder_of_data_may_have_one_of_our_names(folder: Path) -> None:
    (folder / "storage").mkdir()
    (folder / "storage" / "weights.bin").write_bytes(b"")
    load_function("custom_rm.py:reward_func", user_dir=folder)
    (folder / "storage" / "mine.py").write_text("")
    with pytest.raises(NameTaken, match="folder"):
        load_function("custom_rm.py:reward_func", user_dir=folder)


def test_an_installed_module_that_hides_the_users_is_named(folder: Path) -> None:
    (folder / "msgspec.py").write_text("def reward_func(args, sample): return 5.0\n")
    with pytest.raises(PlugPointMissing, match=r"hidden by it: write msgspec\.py:function"):
        load_function("msgspec:reward_func", user_dir=folder)
    assert load_function("msgspec.py:reward_func", user_dir=folder)(None, None) == 5.0


def test_slimes_own_paths_lead_to_ours() -> None:
    path = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    assert load_function(path) is check_reward_nonzero_std
    for path in SLIME_PATHS:
        assert callable(load_function(path))


def test_plug_ins_written_for_slime_import_ours(folder: Path) -> None:
    (folder / "proj_slime.py").write_text(
        "from slime.utils.types import Sample\n"
        "from slime.rollout.filter_hub.base_types import DynamicFilterOutput\n"
        "from slime.rollout.rm_hub.math_utils import grade_answer_verl\n"
        "def keep(args, samples: list[Sample], **kwargs): return DynamicFilterOutput(keep=True, reason='x')\n"
    )
    assert load_function("proj_slime:keep", user_dir=folder)(None, []).reason == "x"
    (folder / "proj_more.py").write_text("from slime.utils.wandb_utils import init\n")
    with pytest.raises(PlugPointError, match=r"slime\.utils\.types"):
        load_function("proj_more:f", user_dir=folder)
    for module, names in SLIME_MODULES.items():
        for name in names:
            assert getattr(importlib.import_module(module), name) is not None


def test_earlier_module_names_still_load(folder: Path) -> None:
    """In a process of its own: nothing has imported the modules under today's names."""
    (folder / "proj_earlier.py").write_text(
        "from slime_events.sample import Sample\n"
        "from slime_events.filters.base_types import DynamicFilterOutput\n"
        "from slime_events.rewards import coin, exact\n"
        "def keep(args, samples: list[Sample], **kwargs): return DynamicFilterOutput(keep=True)\n"
    )
    program = (
        "import sys\n"
        "from slime_events.plugins.loader import load_function\n"
        "module = sys.modules[load_function('proj_earlier:keep', user_dir=sys.argv[1]).__module__]\n"
        "recorded = load_function('slime_events.filters.dynamic_sampling:check_reward_nonzero_std')\n"
        "coin = load_function('slime_events.rewards.coin:reward')\n"
        "from slime_events.plugins import sample\n"
        "from slime_events.plugins.filters import base_types, dynamic_sampling\n"
        "from slime_events.plugins.rewards import exact, random_reward\n"
        "assert module.Sample is sample.Sample\n"
        "assert module.DynamicFilterOutput is base_types.DynamicFilterOutput\n"
        "assert module.exact.reward is exact.reward\n"
        "assert recorded is dynamic_sampling.check_reward_nonzero_std\n"
        "assert coin is module.coin.reward is random_reward.reward\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, timeout=60)


def test_a_real_slime_goes_first(tmp_path: Path) -> None:
    real = tmp_path / "slime" / "utils"
    real.mkdir(parents=True)
    (tmp_path / "slime" / "__init__.py").write_text("")
    (real / "__init__.py").write_text("")
    (real / "types.py").write_text("Sample = 'real'\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from slime_events.plugins.slime.aliases import install_slime_aliases; install_slime_aliases()\n"
        "from slime.utils.types import Sample; assert Sample == 'real'\n"
        "import importlib.util; assert importlib.util.find_spec('slime.rollout') is None\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)


def test_digest_follows_the_source(folder: Path) -> None:
    function = load_function("custom_rm.py:reward_func", user_dir=folder)
    assert digest_of(function) == digest_of(functools.partial(function, None))
    assert name_of(function).endswith(":reward_func")
    other = folder / "other_rm.py"
    other.write_text((folder / "custom_rm.py").read_text())
    assert digest_of(load_function("other_rm.py:reward_func", user_dir=folder)) == digest_of(function)
    (folder / "third_rm.py").write_text((folder / "custom_rm.py").read_text() + "# changed\n")
    assert digest_of(load_function("third_rm.py:reward_func", user_dir=folder)) != digest_of(function)
    assert len(digest_of(len)) == 64


def test_args_view_helps_and_is_each_call_s_own() -> None:
    args = ArgsView.of(RewardSettings(rm_type="math", reward_key="score"))
    assert args.reward_key == "score"
    assert getattr(args, "nope", 3) == 3
    with pytest.raises(AttributeError, match="nearest: rm_type"):
        _ = args.rm_tipe
    mine = for_one_call(ArgsView({**vars(args), "stop": ["a"]}))
    mine.rm_type, mine.sampling_params = "dapo", {"n": 1}
    mine.stop.append("b")
    assert (args.rm_type, hasattr(args, "sampling_params")) == ("math", False)
    for copied in (copy.copy(mine), copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert vars(copied) == vars(mine)


def test_what_one_call_leaves_on_args_no_other_sees() -> None:
    base = ArgsView({"results": {"solver": []}})
    first, other = for_one_call(base), for_one_call(base)
    first.results["solver"].append(1)
    assert (other.results, base.results) == ({"solver": []}, {"solver": []})


def test_all_plug_points_have_one_list_of_names() -> None:
    """Every setting but where the run lies and who reaches it, then those of a file of one's own."""
    groups = [
        getattr(TrainSettings(), name)
        for name in TrainSettings.__struct_fields__
        if name not in ("run", "debug", "agents", "gateway")
    ]
    added = {"tool_url": "http://t", "rm_type": "mine"}
    args = ArgsView.of_run(made.settings(rollout={"custom_config": added}))
    assert {name for group in groups for name in group.__struct_fields__} <= set(args)
    assert (args.tool_url, args.rm_type, args.sglang_router_port) == ("http://t", "mine", 0)
    assert "nats_creds" not in args


def test_light_processes_stay_light() -> None:
    program = (
        "import sys, slime_events.plugins.loader"
        ", slime_events.plugins.rewards.pool, slime_events.plugins.rewards.worker"
        ", slime_events.plugins.filters.decide"
        ", slime_events.plugins.filters.dynamic_sampling, slime_events.loop.prompts.source\n"
        "heavy = {'torch', 'ray', 'transformers', 'sympy', 'pandas', 'pyarrow', 'reasoning_gym'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
