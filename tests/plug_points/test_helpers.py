"""slime's small helpers for users' code: spans on samples, ports, hosts, processes, images, and what is no secret."""

from __future__ import annotations

import base64
import builtins
import socket
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import PlugPointError
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.plugins.sample import Sample
from slime_events.plugins.slime import hosts
from slime_events.plugins.slime.eval_datasets import ensure_dataset_list
from slime_events.plugins.slime.helpers import (
    build_processor_kwargs,
    encode_image_for_rollout_engine,
    load_processor,
    should_run_periodic_action,
)
from slime_events.plugins.slime.hosts import exec_command, find_available_port, get_free_port, get_host_info, wrap_ipv6
from slime_events.plugins.slime.traces import (
    bind_trace,
    build_sglang_meta_trace_attrs,
    trace_event,
    trace_function,
    trace_span,
)
from slime_events.plugins.trainer_points import (
    BEFORE_TRAIN_STEP,
    DATA,
    INIT,
    LOSS,
    POST_PROCESS,
    TIS,
    RunEngines,
    TrainerFunctions,
    UserFunction,
)
from slime_events.plugins.user_environment import user_environment


@pytest.mark.parametrize(
    ("name", "value", "stays"),
    [
        ("PATH", "/bin", True),
        ("https_proxy", "http://me:password@proxy", True),
        ("WANDB_API_KEY", "abcdefgh12345", False),
        ("NATS_URL", "nats://me:password1@host", False),
        ("FSSPEC_S3", '{"key": "me", "secret": "abcdefgh12345"}', False),
        ("SAID", "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789", False),
        ("LANG", "", True),
    ],
)
def test_programs_of_users_get_no_secret_but_those_that_are_passed(name: str, value: str, stays: bool) -> None:
    assert user_environment({name: value}) == ({name: value} if stays else {})
    assert user_environment({name: value}, [name]) == {name: value}


def _events(sample: Sample) -> list[tuple[Any, ...]]:
    assert sample.trace is not None
    return [(event["type"], event["name"], event.get("attrs")) for event in sample.trace["events"]]


def test_a_span_tells_what_was_raised_unless_it_is_told_not_to() -> None:
    traced, silent = Sample(index=1, group_index=2), Sample()
    with pytest.raises(ValueError, match="x"), trace_span(traced, "a"):
        raise ValueError("x")
    with pytest.raises(ValueError, match="x"), trace_span(silent, "a", record_error=False):
        raise ValueError("x")
    assert _events(traced)[1] == ("span_end", "a", {"error_type": "ValueError", "error_message": "x"})
    assert _events(silent)[1] == ("span_end", "a", None)


def test_spans_know_the_span_around_them_and_their_end() -> None:
    sample, other = Sample(index=1, group_index=2), Sample()
    with trace_span([[sample], other, "no sample"], "outer") as outer:
        with trace_span(sample, "inner", attrs={"a": 1}) as inner:
            inner.set("b", 2).update({"c": 3}).update(None)
        outer.set_attr("d", 4).update_attrs({"e": 5})
    trace_event(sample, "after", attrs={"f": 6})
    with trace_span(sample, "alone"):
        pass
    assert _events(sample) == [
        ("span_start", "outer", None), ("span_start", "inner", {"a": 1}), ("span_end", "inner", {"b": 2, "c": 3}),
        ("span_end", "outer", {"d": 4, "e": 5}), ("event", "after", {"f": 6}), ("span_start", "alone", None),
        ("span_end", "alone", None),
    ]  # fmt: skip
    begun, inside, ended, *_ = sample.trace["events"]  # type: ignore[index]
    alone = sample.trace["events"][-2]  # type: ignore[index]
    assert (begun["parent_span_id"], inside["parent_span_id"]) == (None, begun["span_id"])
    assert (ended["span_id"], alone["parent_span_id"]) == (inside["span_id"], None)
    assert len(_events(other)) == 2
    before = bind_trace(sample)
    assert {name: before[name] for name in ("version", "attempt", "sample_id", "group_id")} == {
        "version": 1, "attempt": 0, "sample_id": 1, "group_id": 2
    }  # fmt: skip
    sample.index = 3
    assert bind_trace(sample) is sample.trace
    assert (sample.trace["trace_id"], sample.trace["sample_id"]) == (before["trace_id"], 3)  # type: ignore[index]


def test_a_function_that_is_no_coroutine_is_traced_too() -> None:
    sample = Sample()

    @trace_function("called", target="sample")
    def called(number: int, sample: Sample) -> int:
        return number

    assert called(3, sample=sample) == 3
    assert _events(sample) == [("span_start", "called", None), ("span_end", "called", None)]


def test_what_is_kept_of_an_engine_s_answer() -> None:
    assert build_sglang_meta_trace_attrs({}) == {"finish_reason": None}
    meta = {"cached_tokens": 0, "completion_tokens": 2, "prompt_tokens": None, "id": None, "finish_reason": None}
    assert build_sglang_meta_trace_attrs(meta) == {"cached_tokens": 0, "completion_tokens": 2, "finish_reason": None}


def test_free_ports_lie_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {10000, 10002, 65534}
    monkeypatch.setattr(hosts, "is_port_available", lambda port: port < 65536 and port not in taken)
    assert [get_free_port(), get_free_port(consecutive=2), get_free_port(10002, 3)] == [10001, 10003, 10003]
    assert get_free_port(65535) == 65535
    for start, count in ((65534, 2), (65533, 3), (65536, 1)):
        with pytest.raises(PlugPointError):
            get_free_port(start, count)
    monkeypatch.setattr(hosts.random, "randint", lambda low, high: low)
    assert find_available_port(20000) == 20100
    monkeypatch.setattr(hosts.random, "randint", lambda low, high: high)
    assert find_available_port(20000) == 21000


def test_a_port_that_somebody_listens_at_is_not_free() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert not hosts.is_port_available(port)
    assert not hosts.is_port_available(-1)


def test_a_port_is_free_as_soon_as_its_server_has_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # who closes first keeps the address for a minute
            assert client.recv(1) == b""
    assert hosts.is_port_available(port)


def test_a_machine_without_a_way_out_has_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_way(self: Any, address: Any) -> None:
        raise OSError

    monkeypatch.delenv("SLIME_HOST_IP", raising=False)
    monkeypatch.setattr(hosts.socket, "socket", type("Away", (socket.socket,), {"connect": no_way}))
    assert get_host_info() == (socket.gethostname(), "127.0.0.1")


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    assert [wrap_ipv6(host) for host in ("::1", "[::1]", "10.0.0.1", "host")] == ["[::1]", "[::1]", "10.0.0.1", "host"]


def test_output_of_a_command_is_kept_where_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert exec_command("echo a; echo b >&2") is None
    assert "a" in capfd.readouterr().out.splitlines()
    assert exec_command("echo a", capture_output=True) == "a\n"
    with pytest.raises(subprocess.CalledProcessError):
        exec_command("exit 3", capture_output=True)


class Stubborn:
    """A process that ends when it is killed, or when it is asked to."""

    def __init__(self, deaf: bool, alive: bool = True) -> None:
        self.deaf, self.alive, self.calls = deaf, alive, list[Any]()

    def is_alive(self) -> bool:
        return self.alive

    def terminate(self) -> None:
        self.calls.append("terminate")
        self.alive = self.deaf

    def kill(self) -> None:
        self.calls.append("kill")
        self.alive = False

    def join(self, timeout: float | None = None) -> None:
        self.calls.append(timeout)


@pytest.mark.parametrize(
    ("process", "calls"),
    [
        (Stubborn(deaf=False), ["terminate", 1.0]),
        (Stubborn(deaf=True), ["terminate", 1.0, "kill", None]),
        (Stubborn(deaf=True, alive=False), []),
    ],
)
def test_a_process_is_asked_to_end_and_killed_where_it_does_not(process: Stubborn, calls: list[Any]) -> None:
    hosts.terminate_process(process)  # type: ignore[arg-type]
    assert process.calls == calls


@pytest.mark.parametrize(
    ("interval", "epoch", "total", "due"),
    [(4, None, None, [3, 7]), (4, 5, 9, [3, 4, 7, 8, 9]), (1, None, None, list(range(10))), (None, 5, 9, [])],
)
def test_what_is_done_every_so_often_is_due(
    interval: int | None, epoch: int | None, total: int | None, due: list[int]
) -> None:
    assert [n for n in range(10) if should_run_periodic_action(n, interval, epoch, total)] == due


def test_an_image_is_sent_as_rgb() -> None:
    def image(mode: str, name: bytes) -> Any:
        def save(buffer: Any, format: str) -> None:
            buffer.write(name)

        return SimpleNamespace(mode=mode, save=save, convert=lambda mode: image(mode, name + b" converted"))

    sent = [encode_image_for_rollout_engine(image(mode, mode.encode())) for mode in ("RGB", "L")]
    assert [base64.b64decode(data_url.partition(",")[2]) for data_url in sent] == [b"RGB", b"L converted"]


def test_a_processor_is_looked_for_on_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoProcessor, PreTrainedTokenizerFast

    calls: list[Any] = []

    def loader_of(result: Any) -> Any:
        def read(path: str, **how: Any) -> Any:
            calls.append((path, how))
            if isinstance(result, Exception):
                raise result
            return result

        return read

    tokenizer = PreTrainedTokenizerFast.__new__(PreTrainedTokenizerFast)
    for result, loaded in (
        ("processor", "processor"),
        (tokenizer, None),
        *((error, None) for error in (OSError(), ValueError())),
    ):
        monkeypatch.setattr(AutoProcessor, "from_pretrained", loader_of(result))
        assert load_processor("model", trust_remote_code=True) == loaded
    assert calls == [("model", {"local_files_only": True})] * 4


def test_a_processor_gets_tensors_of_media_and_lists_of_text() -> None:
    kwargs = {"text": "a", "text_kwargs": {"x": 1}, "videos_kwargs": {"y": 2}}
    media = {kind: {"return_tensors": "pt"} for kind in ("audio_kwargs", "images_kwargs")}
    assert build_processor_kwargs(kwargs) == {
        "text": "a", "text_kwargs": {"x": 1, "return_tensors": None}, **media,
        "videos_kwargs": {"y": 2, "return_tensors": "pt"},
    }  # fmt: skip
    assert build_processor_kwargs(None)["text_kwargs"] == {"return_tensors": None}


def test_sets_of_an_evaluation_have_names() -> None:
    assert ensure_dataset_list({"a": None, "b": {"path": "p"}}) == [{"name": "a"}, {"name": "b", "path": "p"}]
    assert ensure_dataset_list(({"name": "a"},)) == [{"name": "a"}]
    with pytest.raises(ValueError, match="set 2 "):
        ensure_dataset_list([{"name": "a"}, None])


HOOKS = """
calls = []
def told(args, rollout_id, step_id, model, optimizer, opt_param_scheduler): calls.append((args, rollout_id, step_id))
def loss(args, batch, logits, sum_of_sample_mean): raise SystemExit(3)
def data(args, rollout_data): return 7
def refused(args, rollout_id, rollout_data): raise builtins.OWN
def tis(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, **more): ...
import builtins
"""


def test_functions_of_the_trainer_are_found_by_their_point(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own_points.py"
    file.write_text(HOOKS)
    algorithm = AlgorithmSettings(
        custom_loss_function_path=f"{file}:loss", rollout_data_postprocess_path=f"{file}:data",
        custom_tis_function_path=f"{file}:tis",
    )  # fmt: skip
    trainer = TrainerSettings(custom_megatron_before_train_step_hook_path=f"{file}:told")
    functions = TrainerFunctions("args", algorithm, trainer)
    hook = functions.at(BEFORE_TRAIN_STEP)
    assert hook is not None
    functions.notify(BEFORE_TRAIN_STEP, 1, 2, None, None, None)
    functions.notify(INIT)
    assert hook._function.__globals__["calls"] == [("args", 1, 2)]
    assert (functions.at(INIT), functions.at(POST_PROCESS)) == (None, None)
    data, loss, tis = (functions.at(point) for point in (DATA, LOSS, TIS))
    assert data is not None
    assert loss is not None
    assert tis is not None
    assert (data("args", {}), data.positional, loss.positional) == (7, 2, 4)
    assert (tis.accepts("anything"), data.accepts("rollout_data"), data.accepts("other")) == (True, True, False)
    digests = functions.digests(DATA, INIT, BEFORE_TRAIN_STEP)
    assert digests == {DATA.field: data.digest, BEFORE_TRAIN_STEP.field: hook.digest}
    with pytest.raises(PlugPointError, match=r"--custom-loss-function-path .*:loss"):
        loss("args", None, None, None)
    own = PlugPointError("mine")
    monkeypatch.setattr(builtins, "OWN", own, raising=False)
    with pytest.raises(PlugPointError) as caught:
        UserFunction(DATA, f"{file}:refused")("args", 0, {})
    assert caught.value is own
    assert TrainerFunctions("args").at(DATA) is None


def test_a_function_that_takes_other_arguments_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "own_wrong.py"
    file.write_text("def wrong(args): ...\n")
    for point in (DATA, LOSS, TIS):
        with pytest.raises(PlugPointError):
            point.check(f"{file}:wrong")
    INIT.check(f"{file}:wrong")


def test_engines_cannot_be_looked_at_from_the_trainer() -> None:
    for look in (len, list, lambda engines: engines[0]):
        with pytest.raises(PlugPointError):
            look(RunEngines())
