"""Names of the protocol are the log's, taken apart again; what nobody here gave out is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import CommandKind
from schemas.errors import InvalidValue
from serve_apps.http.tinker import names

SESSION = "tinker-0123456789abcdef"
FEW = settings(max_examples=20)
NUMBERS = st.integers(0, 10**9 - 1)


def test_sessions_are_new_each_time() -> None:
    first, other = names.new_session(), names.new_session()
    assert first != other
    assert names.check_session(first) == first


@FEW
@given(NUMBERS)
def test_a_model_is_found_by_its_id(number: int) -> None:
    model = names.new_model(SESSION, number)
    assert model == f"{SESSION}-m{number}"
    assert names.model_id_of(model) == f"{SESSION}:train:{number}"
    assert names.model_of(names.model_id_of(model)) == model


@FEW
@given(NUMBERS, NUMBERS, st.booleans())
def test_a_sampler_is_of_its_version(number: int, version: int, saved: bool) -> None:
    assert names.version_of(names.sampler_of(SESSION, number, version, saved=saved)) == version


def test_a_sampler_of_saved_weights_is_no_other() -> None:
    assert names.sampler_of(SESSION, 1, 2) != names.sampler_of(SESSION, 1, 2, saved=True)


@FEW
@given(NUMBERS)
def test_a_command_is_its_model_s(number: int) -> None:
    command = names.command_of(f"{SESSION}-m0", number)
    assert command == f"{SESSION}-m0-{number:06d}"
    assert names.check_command(command) == command


@FEW
@given(st.integers(0, 100), st.integers(1, 1024))
def test_a_call_of_samples_is_its_future(number: int, count: int) -> None:
    sampler = names.sampler_of(SESSION, 1, 7)
    samples = names.Samples.new(sampler, number, 7, count)
    assert names.Samples.of(samples.future) == samples
    assert len(set(samples.ids)) == count
    assert samples == names.Samples.new(sampler, number, 7, count)
    assert samples.group != names.Samples.new(sampler, number + 1, 7, count).group
    assert samples.group.startswith("call-7-")
    assert names.Samples.of(names.command_of(f"{SESSION}-m0", number)) is None


@pytest.mark.parametrize(
    ("kind", "folder"),
    [(CommandKind.SAVE_WEIGHTS, "weights"), (CommandKind.SAVE_WEIGHTS_FOR_SAMPLER, "sampler_weights")],
)
def test_saved_weights_have_a_path(kind: CommandKind, folder: str) -> None:
    assert names.path_of(f"{SESSION}-m2", kind, "a.B-1_") == f"tinker://{SESSION}:train:2/{folder}/a.B-1_"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: names.check_session("tinker-0"),
        lambda: names.new_model("tinker-0", 0),
        lambda: names.new_model(SESSION, -1),
        lambda: names.new_model(SESSION, 10**9),
        lambda: names.model_of(f"{SESSION}:train:x"),
        lambda: names.model_of(f"{SESSION}:train:{10**9}"),
        lambda: names.version_of(f"{SESSION}:sample:1"),
        lambda: names.path_of("m", CommandKind.SAVE_WEIGHTS, "../a"),
        lambda: names.path_of("m", CommandKind.SAVE_WEIGHTS, ""),
        lambda: names.check_command(f"{SESSION}-m0-1"),
        lambda: names.check_command("*"),
    ],
)
def test_what_is_none_of_ours_is_refused(ask: Callable[[], str]) -> None:
    with pytest.raises(InvalidValue):
        ask()
