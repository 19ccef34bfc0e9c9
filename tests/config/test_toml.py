"""TOML says the same as flags; what is written is read back; what is wrong is named with its line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InvalidValue, UnknownFlag
from slime_events.algorithms.train_arguments import parse_train, registered
from slime_events.core.config.fields import COMPONENTS, SettingsField, settings_fields
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import read_toml, settings_from, to_toml
from slime_events.core.config.values import Kind
from tools.settings_page import document

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SINGLE: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOL: st.booleans(),
    Kind.INT: st.integers(-(2**53), 2**53),
    Kind.FLOAT: st.floats(allow_nan=False, allow_infinity=False),
    Kind.STR: TEXTS,
    Kind.JSON: st.dictionaries(TEXTS, st.one_of(st.integers(), st.booleans(), TEXTS, st.lists(TEXTS)), max_size=3),
}
SETS = st.fixed_dictionaries(
    {"path": TEXTS}, optional={"temperature": SINGLE[Kind.FLOAT], "metadata_overrides": SINGLE[Kind.JSON]}
)
GROUPS = st.fixed_dictionaries({"num_gpus": st.integers(1, 8)}, optional={"overrides": SINGLE[Kind.JSON]})
MODELS = st.fixed_dictionaries(
    {}, optional={"model_path": TEXTS, "update_weights": st.booleans(), "server_groups": st.lists(GROUPS, max_size=2)}
)
SGLANG = st.fixed_dictionaries({}, optional={"mem_fraction_static": SINGLE[Kind.FLOAT], "log_level": TEXTS})
MEGATRON = st.fixed_dictionaries({}, optional={"recompute_num_layers": SINGLE[Kind.INT], "swiglu": st.just(True)})


def values_of(field: SettingsField) -> st.SearchStrategy[Any]:
    if field.type.choices:
        return st.sampled_from(field.type.choices)
    if field.name == "eval_sets":
        return st.dictionaries(TEXTS, SETS, max_size=3)
    if field.name == "sglang_models":
        return st.dictionaries(TEXTS, MODELS, max_size=3)
    if field.name == "train_env_vars":
        return st.dictionaries(TEXTS, TEXTS, max_size=3)
    single = SINGLE[field.type.kinds[0]]
    return st.lists(single, max_size=3) if field.type.many else single


@st.composite
def any_settings(draw: st.DrawFn) -> TrainSettings:
    chosen = draw(st.lists(st.sampled_from(settings_fields()), max_size=12))
    values: dict[str, dict[str, Any]] = {name: {} for name in COMPONENTS}
    for field in chosen:
        values[field.component][field.name] = draw(values_of(field))
    values["engine"]["sglang"], values["trainer"]["megatron"] = draw(SGLANG), draw(MEGATRON)
    return settings_from(values)


@given(any_settings())
def test_round_trip(settings: TrainSettings) -> None:
    assert settings_from(read_toml(to_toml(settings), "run.toml")) == settings
    assert settings_from(msgspec.to_builtins(settings)) == settings, "as run.started records them"


def test_flags_and_their_toml_mean_the_same() -> None:
    line = "--hf-checkpoint m --num-rollout 2 --rm-type math --swiglu --sglang-log-level info --rollout-stop a b"
    settings = parse_train(line.split()).settings
    again = parse_train(["--config", "x.toml"], read=lambda path: to_toml(settings))
    assert again.settings == settings


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[rollout]\nnum_rollout = 1\nrollout_batchsize = 2\n", UnknownFlag, "line 3|rollout_batch_size"),
        ("[rolout]\n", UnknownFlag, "line 1|rollout"),
        ("[data]\nlr = 1.0\n", UnknownFlag, "line 2|[trainer]"),
        ("num_rollout = 1\n", UnknownFlag, "line 1|[rollout]"),
        ("[rollout]\n\nnum_rollout = '1'\n", InvalidValue, "line 3|whole number"),
        ("[algorithm]\nkl_loss_type = 'k9'\n", InvalidValue, "line 2|low_var_kl"),
        ("[evaluation]\neval_prompt_data = 'a b'\n", InvalidValue, "line 2|a list"),
        ("[engine]\n[engine.sglang]\nmem_fraction_statc = 1\n", UnknownFlag, "line 2|mem_fraction_static"),
        ("[trainer.megatron]\nrecompute_layers = 1\n", UnknownFlag, "line 1|recompute_num_layers"),
        ("[trainer.megatron]\nnum_query_groups = '2'\n", InvalidValue, "line 1|whole number"),
        ("[rollout\n", InvalidValue, "is not TOML"),
    ],
)
def test_errors_carry_file_and_line(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        read_toml(text, "run.toml")
    assert "run.toml" in str(caught.value)
    for part in says.split("|"):
        assert part in str(caught.value)


def test_the_page_of_all_settings_is_up_to_date(pytestconfig: pytest.Config) -> None:
    page = pytestconfig.rootpath / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == document(registered()), "python -m tools.settings_page docs/settings.md"
