"""Test how each of a user's functions is called: with the arguments that its point documents, and with slime's defaults
if a caller leaves something out.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from schemas.errors import PlugPointError
from slime_events.plugins import step_functions, trainer_points
from slime_events.plugins.loader import count_taken
from slime_events.plugins.sample import Sample
from slime_events.plugins.slime.aliases import install_slime_aliases
from slime_events.plugins.trainer_points import IN_RANKS, IN_STEPS, PlugPoint

install_slime_aliases()


def function_of(parameters: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(f"def f{parameters}: ...", namespace)
    function: Callable[..., Any] = namespace["f"]
    return function


def positional_of(words: str) -> list[str]:
    """Names of the arguments that come in order, of a point's words."""
    return [name for name in re.split(r", *", words.strip("()").partition("*")[0]) if name and "=" not in name]


@pytest.mark.parametrize(
    "point", [point for point in trainer_points.POINTS if not point.names], ids=lambda point: point.field
)
def test_a_point_calls_a_function_as_its_words_say(point: PlugPoint) -> None:
    names = positional_of(point.takes)
    assert point.count(function_of(point.takes)) == len(names)
    for other in (*names[:-1],), (*names, "one_more"):
        if len(other) not in point.also:
            with pytest.raises(PlugPointError):
                point.count(function_of(f"({', '.join(other)})"))


@pytest.mark.parametrize(
    "point", [point for point in trainer_points.POINTS if point.names], ids=lambda point: point.field
)
def test_a_point_with_names_calls_by_them(point: PlugPoint) -> None:
    point.count(function_of(point.takes))
    for name in point.names:
        assert name in point.takes
        with pytest.raises(PlugPointError):
            point.count(function_of(re.sub(rf", {name}\b|\b{name}, ", "", point.takes)))
    with pytest.raises(PlugPointError):
        point.count(function_of(f"(first_of_its_own, {point.takes[1:]}"))


@pytest.mark.parametrize(
    ("field", "counts"),
    [("rollout_data_postprocess_path", (3, 2)), ("custom_convert_samples_to_train_data_path", (2, 4))],
)
def test_arguments_of_an_older_slime_are_taken_too(field: str, counts: tuple[int, ...]) -> None:
    (point,) = [each for each in trainer_points.POINTS if each.field == field] or [None]
    for count in range(1, 7):
        function = function_of(f"({', '.join('abcdef'[:count])})")
        call = point.count if point else lambda function: count_taken(function, *step_functions.POINTS[field])
        if count in counts:
            assert call(function) == count
        else:
            with pytest.raises(PlugPointError):
                call(function)


@pytest.mark.parametrize("setting", step_functions.POINTS)
def test_a_function_of_a_step_is_called_as_its_words_say(setting: str) -> None:
    words, counts = step_functions.POINTS[setting]
    assert count_taken(function_of(words), words, counts) == len(positional_of(words))


def test_who_calls_which_point() -> None:
    """Rewards are processed where batches are sealed, and what was written is no part of a step."""
    fields = {point.field for point in trainer_points.POINTS}
    assert fields - {point.field for point in IN_RANKS} == {"custom_reward_post_process_path"}
    assert {point.field for point in IN_RANKS} - {point.field for point in IN_STEPS} == {
        "custom_update_weight_post_write_path"
    }


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("slime.rollout.sglang_rollout.generate_and_rm", {"evaluation": False}),
        ("slime.rollout.sglang_rollout.generate_and_rm_group", {"evaluation": False}),
        ("slime.rollout.sglang_rollout.generate_rollout", {"evaluation": False}),
        ("slime.utils.http_utils.post", {"max_retries": 60, "headers": None}),
        ("slime.utils.http_utils.terminate_process", {"timeout": 1.0}),
        ("slime.utils.misc.exec_command", {"capture_output": False}),
        ("slime.utils.misc.get_free_port", {"start_port": 10000, "consecutive": 1}),
        ("slime.observability.trace_utils.trace_span", {"attrs": None, "record_error": True}),
        (
            "slime.utils.types.Sample.append_response_tokens",
            {"args": None, "tokens": None, "log_probs": None, "trainable": True, "meta_info": None, "text": None}
            | {"update_terminal_info": True},
        ),
    ],
)
def test_what_a_caller_of_slimes_leaves_out(name: str, defaults: dict[str, Any]) -> None:
    parts = name.split(".")
    member: Any = importlib.import_module(".".join(parts[:3]))
    for part in parts[3:]:
        member = getattr(member, part)
    parameters = inspect.signature(member).parameters.values()
    assert {
        parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
    } == defaults


def test_a_new_sample_says_nothing() -> None:
    """Every field is empty, so that nothing of it counts before code has set it."""
    fields = Sample().to_dict()
    assert fields.pop("status") == "pending"
    for name in ("spec_info", "prefix_cache_info"):
        assert set(fields.pop(name).values()) == {0}
    assert {name for name, value in fields.items() if value} == set()
    assert (fields["response_length"], fields["remove_sample"]) == (0, False)
