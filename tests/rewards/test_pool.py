"""The grader pool with real processes: limits that hold, deaths that stay with their sample, nothing left behind."""

import asyncio
import contextlib
import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from schemas.errors import NameTaken, PlugPointError, PlugPointMissing, SlimeEventsError, UnknownGrader
from schemas.rewards import RewardFailureKind as Kind
from slime_events.core.child.limits import OPEN_FILES
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.loader import digest_of, load_function
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import Graded, Outcome, RewardFailure
from slime_events.plugins.rewards.pool import WorkerPool
from slime_events.plugins.sample import Sample
from tests.clock import Clock
from tests.rewards.jobs import grade, grade_group

LIMIT_S = 60.0
"""Of a grading. It has passed when a test puts the clock forward."""

OWN = """
import asyncio, ctypes, os, pathlib, signal, subprocess, time
from slime.utils.types import Sample

held = []

def reward_func(args, sample: Sample, **kwargs):
    match sample.response:
        case "sleep": time.sleep(600)
        case "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            while True: pass
        case "c": ctypes.PyDLL(None).sleep(600)  # C code that keeps the interpreter's lock
        case "exit": os._exit(3)
        case "segfault": ctypes.string_at(0)
        case "raise": raise KeyError("gone")
        case "nan": return {"right": float("nan")}
        case "none": return None
        case "print": print("from the user", flush=True)
        case "memory": held.append(bytearray(400_000_000)); bytearray(1_000_000_000)
        case "leak": held.append(bytearray(400_000_000))
        case "names": return {"right": 1.0, "names": sorted(os.environ)}
        case "raw": sample.metadata["raw_reward"] = 7
    return {"right": float(sample.response == sample.label), "args": args.rm_timeout, "cwd": os.getcwd()}

async def waits(args, sample):
    if sample.response == "block": pathlib.Path("blocks").touch(); time.sleep(600)
    if sample.response == "child": await asyncio.create_task(asyncio.to_thread(os._exit, 5))
    await asyncio.sleep(0.1)
    return 1.0

met, all_met = [], asyncio.Event()

async def meet(args, sample):
    if sample.response == "sleep": await asyncio.sleep(600)
    met.append(sample)
    if len(met) == 50: all_met.set()
    await all_met.wait()
    return 1.0

def starts(args, sample):
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path("partial").write_text(str(child.pid))
    os.rename("partial", "child")
    time.sleep(600)

def group(args, samples):
    if samples[0].response == "short": return [1.0]
    if samples[0].response == "sleep": time.sleep(600)
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


def own(folder: Path, function: str = "own.py", **settings: object) -> WorkerPool:
    fields = {"custom_rm_path": function, "reward_key": "right", "rm_timeout": LIMIT_S, **settings}
    return WorkerPool(RewardSettings(**fields), user_dir=folder, log=folder / "grader.log")  # type: ignore[arg-type]


async def pass_limit(clock: Clock, pool: WorkerPool, unit: int) -> None:
    """While the pool's process works on a unit, and what it did before has been heard of."""
    while pool._processes[0].current() != unit:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    clock.forward(LIMIT_S + 1.0)


async def test_built_in() -> None:
    async with WorkerPool(RewardSettings(rm_type="exact")) as pool:
        assert [os.getsid(pid) for pid in pool.pids] == pool.pids, "each leads a session of its own"
        first = await grade(pool, samples(*["ok", "no"] * 64))
        assert kinds(first) == [1.0, 0.0] * 64
        assert isinstance(first[0], Graded)
        assert first[0].grader == pool.loaded(pool.own).grader == "exact"
        assert first[0].grader_digest == pool.loaded(pool.own).digest
        assert await grade(pool, []) == []


@pytest.mark.parametrize("how", ["sleep", "blocked", "c"])
async def test_a_stuck_sample_fails_alone_within_its_limit(folder: Path, clock: Clock, how: str) -> None:
    async with own(folder) as pool:
        grading = asyncio.create_task(grade(pool, samples("ok", "no", how, "ok", "no")))
        await pass_limit(clock, pool, 2)
        assert kinds(await grading) == [1.0, 0.0, Kind.TIMEOUT, 1.0, 0.0]
    if how == "sleep":
        assert "reward_func" in (folder / "grader.log").read_text(), "the stack of a stuck grader is in the log"


async def test_what_a_stuck_grader_has_started_ends_with_it(folder: Path, clock: Clock) -> None:
    async with own(folder, "own.py:starts") as pool:
        grading = asyncio.create_task(grade(pool, samples("ok")))
        async with asyncio.timeout(60):
            while not (folder / "child").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        child = int((folder / "child").read_text())
        clock.forward(LIMIT_S + 1.0)
        assert kinds(await grading) == [Kind.TIMEOUT]
    try:
        assert await ended(child, within_s=20.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


async def ended(pid: int, within_s: float) -> bool:
    """Return whether a process ends in time, or waits to be reaped."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(int(within_s / 0.01)):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_sympy_bomb_is_not_computed() -> None:
    async with WorkerPool(RewardSettings(rm_type="math", rm_timeout=LIMIT_S)) as pool:
        right, bomb = Sample(response=r"\boxed{4}", label="4"), Sample(response=r"\boxed{9**9**9}", label="y")
        assert kinds(await grade(pool, [right, bomb, right])) == [1.0, 0.0, 1.0]


async def test_a_sample_that_runs_out_of_memory_fails_alone(folder: Path) -> None:
    async with own(folder, rm_memory_gb=1.2) as pool:
        outcomes = await grade(pool, samples("ok", "memory", "ok", "no"))
        assert kinds(outcomes) == [1.0, Kind.OUT_OF_MEMORY, 1.0, 0.0]
        assert isinstance(outcomes[1], RewardFailure)
        assert "1.2 GB" in outcomes[1].message
        assert outcomes[1].grader == pool.loaded(pool.own).grader


async def test_what_earlier_samples_left_in_memory_fails_no_later_one(folder: Path) -> None:
    async with own(folder, rm_memory_gb=1.2) as pool:
        assert kinds(await grade(pool, samples(*["leak"] * 7))) == [0.0] * 7


async def test_a_process_has_limits_and_no_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "JUDGE_API_KEY", "HF_TOKEN", "HF_HOME"):
        monkeypatch.setenv(name, "planted")
    async with own(folder, rm_memory_gb=8.0, rm_env=["HF_TOKEN"]) as pool:
        (outcome,) = await grade(pool, samples("names"))
        assert isinstance(outcome, Graded)
        names = set(outcome.detail["names"])
        assert names & {"AWS_PROFILE", "JUDGE_API_KEY", "HF_TOKEN", "HF_HOME"} == {"HF_TOKEN", "HF_HOME"}
        for what, most in ((resource.RLIMIT_DATA, 8_000_000_000), (resource.RLIMIT_CORE, 0)):
            assert resource.prlimit(pool.pids[0], what) == (most, most)
        assert resource.prlimit(pool.pids[0], resource.RLIMIT_NOFILE)[1] <= OPEN_FILES


@pytest.mark.parametrize(("how", "reason"), [("exit", "exited with code 3"), ("segfault", "SIGSEGV")])
async def test_a_death_fails_its_sample_only(folder: Path, how: str, reason: str) -> None:
    async with own(folder, rm_workers=2) as pool:
        outcomes = await grade(pool, samples("ok", how, "ok", "no", "ok"))
        assert kinds(outcomes) == [1.0, Kind.WORKER_DIED, 1.0, 0.0, 1.0]
        assert isinstance(outcomes[1], RewardFailure)
        assert reason in outcomes[1].message


async def test_a_process_killed_from_outside_costs_nothing(folder: Path) -> None:
    async with own(folder) as pool:
        os.kill(pool.pids[0], 9)
        assert kinds(await grade(pool, samples("ok", "no"))) == [1.0, 0.0]


async def test_a_process_killed_while_it_loads_is_started_again(folder: Path) -> None:
    struck = (
        "import os, pathlib\nif pathlib.Path('once').exists(): pathlib.Path('once').unlink(); os.kill(os.getpid(), 9)\n"
    )
    (folder / "struck.py").write_text(struck + OWN)
    (folder / "once").touch()
    async with own(folder, "struck.py", rm_workers=1) as pool:
        assert kinds(await grade(pool, samples("ok"))) == [1.0]
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
                await grade(pool, samples("ok"))


async def test_what_own_code_returns_raises_prints_and_changes(folder: Path) -> None:
    async with own(folder) as pool:
        outcomes = await grade(pool, samples("raise", "nan", "none", "print", "raw"))
        assert kinds(outcomes) == [Kind.RAISED, Kind.NOT_A_NUMBER, Kind.NONE, 0.0, 0.0]
        assert isinstance(outcomes[0], RewardFailure)
        assert "KeyError: 'gone' (own.py:" in outcomes[0].message
        assert isinstance(outcomes[4], Graded)
        assert outcomes[4].detail["metadata"] == {"raw_reward": 7}
        assert outcomes[4].detail["args"] == LIMIT_S
        assert outcomes[4].detail["cwd"] == str(folder)
    assert "from the user" in (folder / "grader.log").read_text()


async def test_async_graders_wait_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty that wait for each other, beside one that its own limit ends."""
    monkeypatch.setattr("slime_events.plugins.rewards.pool.GRACE", LIMIT_S)
    async with own(folder, "own:meet", rm_timeout=0.3) as pool:
        outcomes = await grade(pool, samples(*["ok"] * 50, "sleep"))
        assert kinds(outcomes) == [1.0] * 50 + [Kind.TIMEOUT]


@pytest.mark.parametrize(("how", "kind"), [("block", Kind.TIMEOUT), ("child", Kind.WORKER_DIED)])
async def test_an_async_grader_that_blocks_or_dies_fails_alone(
    folder: Path, clock: Clock, how: str, kind: Kind
) -> None:
    async with own(folder, "own:waits") as pool:
        grading = asyncio.create_task(grade(pool, samples("ok", how, "ok")))
        if kind is Kind.TIMEOUT:
            while not (folder / "blocks").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await pass_limit(clock, pool, 1)
        assert kinds(await grading) == [1.0, kind, 1.0]
    stack = "own.py" in (folder / "grader.log").read_text()
    assert stack is (kind is Kind.TIMEOUT), "where it was stuck is in the log"


async def test_groups(folder: Path, clock: Clock) -> None:
    async with own(folder, "own:group", group_rm=True) as pool:
        assert kinds(await grade_group(pool, samples("a", "b", "c"))) == [0.0, 1.0, 2.0]
        wrong = await grade_group(pool, samples("short", "b"))
        assert kinds(wrong) == [Kind.WRONG_TYPE] * 2
        assert isinstance(wrong[0], RewardFailure)
        assert "1 values for 2 samples" in wrong[0].message
        grading = asyncio.create_task(grade_group(pool, samples("sleep", "b")))
        await pass_limit(clock, pool, 0)
        assert kinds(await grading) == [Kind.TIMEOUT] * 2
    async with Dispatcher(RewardSettings(rm_type="exact", group_rm=True)) as graders:
        assert kinds(await graders.grade_group(samples("ok", "no"))) == [1.0, 0.0]


async def test_a_call_that_is_given_up_and_a_clean_end(folder: Path) -> None:
    pool = own(folder, rm_timeout=2 * LIMIT_S)
    await pool.start()
    pids = pool.pids
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.0):
            await grade(pool, samples("ok", "sleep", "ok"))
    assert not [job for job in pool._queue if not job.future.done()]
    await pool.close(deadline=0.2)
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
        await WorkerPool(RewardSettings(rm_type="mth")).start()
    (folder / "storage.py").write_text("")
    with pytest.raises(NameTaken, match=r"my_storage\.py"):
        await own(folder).start()


async def test_a_sample_with_its_own_grader(folder: Path) -> None:
    async with WorkerPool(RewardSettings(rm_type="exact"), user_dir=folder) as pool:
        theirs = Sample(response="x", custom_rm_path="own:waits")
        named = Sample(response=r"\boxed{3}", label="3", metadata={"rm_type": "math"})
        unknown = Sample(metadata={"rm_type": "nope"})
        outcomes = await grade(pool, [theirs, named, unknown, *samples("ok")])
        assert kinds(outcomes) == [1.0, 1.0, Kind.INVALID, 1.0]
        assert [each.grader.rpartition(":")[2] for each in outcomes] == ["waits", "math", "", "exact"]


async def test_the_grader_that_a_sample_names_is_to_blame_for_its_time(folder: Path, clock: Clock) -> None:
    async with WorkerPool(RewardSettings(rm_type="exact", rm_timeout=LIMIT_S), user_dir=folder) as pool:
        stuck = Sample(response="sleep", custom_rm_path="own:reward_func")
        grading = asyncio.create_task(grade(pool, [*samples("ok"), stuck, *samples("no")]))
        await pass_limit(clock, pool, 1)
        outcomes = await grading
    assert kinds(outcomes) == [1.0, Kind.TIMEOUT, 0.0]
    assert outcomes[1].grader == "own:reward_func"
    assert outcomes[1].grader_digest == digest_of(load_function("own:reward_func", user_dir=folder))
    assert outcomes[0].grader_digest == outcomes[2].grader_digest == pool.loaded(pool.own).digest


async def test_a_sample_that_cannot_be_graded_says_why_and_harms_no_other(folder: Path) -> None:
    async with WorkerPool(RewardSettings(rm_type="ifbench"), user_dir=folder) as pool:
        metadata = {"instruction_id_list": ["format:no_whitespace"]}
        good = [Sample(response=text, metadata=metadata) for text in ("one", "one two")]
        bad = Sample(response="x", metadata={"instruction_id_list": ["format:nope"]})
        missing = Sample(response="x", custom_rm_path="own:nobody")
        outcomes = await grade(pool, [*good, bad, Sample(response="x"), missing])
    assert kinds(outcomes) == [1.0, 0.0, Kind.INVALID, Kind.INVALID, Kind.INVALID]
    assert "format:nope" in outcomes[2].message
    assert outcomes[2].grader == "ifbench"
    assert "nobody" in outcomes[4].message
