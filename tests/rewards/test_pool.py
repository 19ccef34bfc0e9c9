"""The grader pool with real processes: limits that hold, deaths that stay with their sample, nothing left behind."""

import errno
import os
import time
from pathlib import Path

import pytest

from schemas.errors import NameTaken, PlugPointError, PlugPointMissing, SlimeEventsError, UnknownGrader
from schemas.rewards import RewardFailureKind as Kind
from slime_events.config.reward import RewardSettings
from slime_events.rewards.outcome import Graded, Outcome, RewardFailure
from slime_events.rewards.pool import GraderPool
from slime_events.sample import Sample

OWN = """
import asyncio, ctypes, os, signal, time
from slime.utils.types import Sample

def reward_func(args, sample: Sample, **kwargs):
    match sample.response:
        case "sleep": time.sleep(60)
        case "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            while True: pass
        case "c": ctypes.PyDLL(None).sleep(60)  # C code that keeps the interpreter's lock
        case "exit": os._exit(3)
        case "segfault": ctypes.string_at(0)
        case "raise": raise KeyError("gone")
        case "nan": return {"right": float("nan")}
        case "none": return None
        case "print": print("from the user", flush=True)
        case "raw": sample.metadata["raw_reward"] = 7
    return {"right": float(sample.response == sample.label), "args": args.rm_timeout, "cwd": os.getcwd()}

async def waits(args, sample):
    if sample.response == "sleep": await asyncio.sleep(60)
    if sample.response == "block": time.sleep(60)
    if sample.response == "child": await asyncio.create_task(asyncio.to_thread(os._exit, 5))
    await asyncio.sleep(0.1)
    return 1.0

def group(args, samples):
    if samples[0].response == "short": return [1.0]
    if samples[0].response == "sleep": time.sleep(60)
    return [sample.index for sample in samples]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def samples(*responses: str) -> list[Sample]:
    return [Sample(index=index, response=response, label="ok") for index, response in enumerate(responses)]


def kinds(outcomes: list[Outcome]) -> list[Kind | float]:
    return [each.value if isinstance(each, Graded) else each.kind for each in outcomes]


def own(folder: Path, function: str = "own.py", **settings: object) -> GraderPool:
    given = {"custom_rm_path": function, "reward_key": "right", "rm_timeout": 0.5, **settings}
    return GraderPool(RewardSettings(**given), user_dir=folder, log=folder / "grader.log")  # type: ignore[arg-type]


async def test_built_in_and_its_speed() -> None:
    async with GraderPool(RewardSettings(rm_type="exact")) as pool:
        many = samples(*["ok", "no"] * 64)
        first = await pool.grade(many)
        assert kinds(first) == [1.0, 0.0] * 64
        assert isinstance(first[0], Graded)
        assert first[0].grader == pool.ready.grader == "exact"
        assert first[0].grader_digest == pool.ready.digest
        best = min([await timed(pool, many) for _ in range(5)])
        assert best < 0.1, "128 trivial gradings; about 5 ms on a quiet machine"
        assert await pool.grade([]) == []


async def timed(pool: GraderPool, many: list[Sample]) -> float:
    began = time.perf_counter()
    await pool.grade(many)
    return time.perf_counter() - began


@pytest.mark.parametrize("how", ["sleep", "blocked", "c"])
async def test_a_stuck_sample_fails_alone_within_its_limit(folder: Path, how: str) -> None:
    async with own(folder) as pool:
        began = time.monotonic()
        outcomes = await pool.grade(samples("ok", "no", how, "ok", "no"))
        assert time.monotonic() - began < 5
        assert kinds(outcomes) == [1.0, 0.0, Kind.TIMEOUT, 1.0, 0.0]
    if how == "sleep":
        assert "reward_func" in (folder / "grader.log").read_text(), "the stack of a stuck grader is in the log"


async def test_a_sympy_bomb_ends() -> None:
    async with GraderPool(RewardSettings(rm_type="math", rm_timeout=0.5)) as pool:
        right = Sample(response=r"\boxed{4}", label="4")
        outcomes = await pool.grade([right, Sample(response=r"\boxed{9**9**9**x}", label="y"), right])
        assert kinds(outcomes)[::2] == [1.0, 1.0]
        assert kinds(outcomes)[1] in (Kind.TIMEOUT, 0.0)


@pytest.mark.parametrize(("how", "said"), [("exit", "exited with code 3"), ("segfault", "SIGSEGV")])
async def test_a_death_fails_its_sample_only(folder: Path, how: str, said: str) -> None:
    async with own(folder, rm_workers=2) as pool:
        outcomes = await pool.grade(samples("ok", how, "ok", "no", "ok"))
        assert kinds(outcomes) == [1.0, Kind.WORKER_DIED, 1.0, 0.0, 1.0]
        assert isinstance(outcomes[1], RewardFailure)
        assert said in outcomes[1].message


async def test_a_process_killed_from_outside_costs_nothing(folder: Path) -> None:
    async with own(folder) as pool:
        os.kill(pool.pids[0], 9)
        assert kinds(await pool.grade(samples("ok", "no"))) == [1.0, 0.0]


async def test_a_process_killed_while_it_loads_is_started_again(folder: Path) -> None:
    struck = (
        "import os, pathlib\nif pathlib.Path('once').exists(): pathlib.Path('once').unlink(); os.kill(os.getpid(), 9)\n"
    )
    (folder / "struck.py").write_text(struck + OWN)
    (folder / "once").touch()
    async with own(folder, "struck.py", rm_workers=1) as pool:
        assert kinds(await pool.grade(samples("ok"))) == [1.0]
    (folder / "fatal.py").write_text("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(PlugPointError, match="was ended by SIGKILL while it loaded its grader"):
        await own(folder, "fatal.py").start()


async def test_a_machine_that_has_no_room_for_a_process_breaks_the_pool(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(name: str) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    async with own(folder, rm_workers=1) as pool:
        monkeypatch.setattr(os, "memfd_create", no_room)
        os.kill(pool.pids[0], 9)
        for _ in range(2):
            with pytest.raises(SlimeEventsError, match=r"a grader process cannot be started.*Cannot allocate memory"):
                await pool.grade(samples("ok"), deadline=10.0)


async def test_what_own_code_returns_raises_prints_and_changes(folder: Path) -> None:
    async with own(folder) as pool:
        outcomes = await pool.grade(samples("raise", "nan", "none", "print", "raw"))
        assert kinds(outcomes) == [Kind.RAISED, Kind.NOT_A_NUMBER, Kind.NONE, 0.0, 0.0]
        assert isinstance(outcomes[0], RewardFailure)
        assert "KeyError: 'gone' (own.py:" in outcomes[0].message
        assert isinstance(outcomes[4], Graded)
        assert outcomes[4].detail["metadata"] == {"raw_reward": 7}
        assert outcomes[4].detail["args"] == 0.5
        assert outcomes[4].detail["cwd"] == str(folder)
    assert "from the user" in (folder / "grader.log").read_text()


async def test_async_graders_wait_side_by_side(folder: Path) -> None:
    async with own(folder, "own:waits", rm_timeout=1.0) as pool:
        began = time.monotonic()
        outcomes = await pool.grade(samples(*["ok"] * 50, "sleep"))
        assert time.monotonic() - began < 3, "50 x 0.1 s one after the other would be 5 s"
        assert kinds(outcomes) == [1.0] * 50 + [Kind.TIMEOUT]


@pytest.mark.parametrize(("how", "kind"), [("block", Kind.TIMEOUT), ("child", Kind.WORKER_DIED)])
async def test_an_async_grader_that_blocks_or_dies_fails_alone(folder: Path, how: str, kind: Kind) -> None:
    async with own(folder, "own:waits") as pool:
        assert kinds(await pool.grade(samples("ok", how, "ok"))) == [1.0, kind, 1.0]


async def test_groups(folder: Path) -> None:
    async with own(folder, "own:group", group_rm=True) as pool:
        assert kinds(await pool.grade_group(samples("a", "b", "c"))) == [0.0, 1.0, 2.0]
        wrong = await pool.grade_group(samples("short", "b"))
        assert kinds(wrong) == [Kind.WRONG_TYPE] * 2
        assert isinstance(wrong[0], RewardFailure)
        assert "1 values for 2 samples" in wrong[0].message
        assert kinds(await pool.grade_group(samples("sleep", "b"))) == [Kind.TIMEOUT] * 2
    async with GraderPool(RewardSettings(rm_type="exact", group_rm=True)) as pool:
        assert kinds(await pool.grade_group(samples("ok", "no"))) == [1.0, 0.0]


async def test_deadline_of_a_call_and_a_clean_end(folder: Path) -> None:
    pool = own(folder, rm_timeout=30.0)
    await pool.start()
    pids = pool.pids
    outcomes = await pool.grade(samples("ok", "sleep", "ok"), deadline=0.5)
    assert kinds(outcomes) == [1.0, Kind.TIMEOUT, Kind.TIMEOUT]
    began = time.monotonic()
    await pool.close(deadline=0.2)
    assert time.monotonic() - began < 5
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_what_cannot_start_says_why(folder: Path) -> None:
    for function, error in (
        ("own:rewrd_func", PlugPointMissing),
        ("nowhere.py", PlugPointMissing),
        ("broken:f", PlugPointError),
    ):
        (folder / "broken.py").write_text("import not_there")
        with pytest.raises(error):
            await own(folder, function).start()
    with pytest.raises(UnknownGrader, match="mth"):
        await GraderPool(RewardSettings(rm_type="mth")).start()
    (folder / "storage.py").write_text("")
    with pytest.raises(NameTaken, match=r"my_storage\.py"):
        await own(folder).start()


async def test_a_sample_with_its_own_grader(folder: Path) -> None:
    async with GraderPool(RewardSettings(rm_type="exact"), user_dir=folder) as pool:
        theirs = Sample(response="x", custom_rm_path="own:waits")
        named = Sample(response=r"\boxed{3}", label="3", metadata={"rm_type": "math"})
        unknown = Sample(metadata={"rm_type": "nope"})
        outcomes = await pool.grade([theirs, named, unknown, *samples("ok")])
        assert kinds(outcomes) == [1.0, 1.0, Kind.RAISED, 1.0]
        assert [each.grader.rpartition(":")[2] for each in outcomes] == ["waits", "math", "", "exact"]
