"""A model that a user's function builds, against the built-in one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import CheckpointMismatch, PlugPointError
from tests.megatron.test_user_functions import weights
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]

PROVIDERS = """
import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.training import get_args
from megatron.training.arguments import core_transformer_config_from_args
from slime.backends.megatron_utils.model_provider import get_model_provider_func

SEEN = []


def as_megatron_lm(pre_process=True, post_process=True, vp_stage=None, **changed):
    args = get_args()
    SEEN.append((pre_process, post_process, vp_stage, args.lr))
    assert args.transformer_impl == "local" and args.num_experts is None
    config = core_transformer_config_from_args(args)
    for name, value in changed.items():
        setattr(config, name, value)
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=args.qk_layernorm, normalization="RMSNorm"),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        rope_scaling=args.use_rope_scaling,
    )


def without_stage(pre_process, post_process):
    return get_model_provider_func(get_args())(pre_process, post_process)


def with_hook(pre_process=True, post_process=True):
    model = without_stage(pre_process, post_process)
    model.decoder.layers[0].register_forward_hook(lambda *_: SEEN.append("forward"))
    return model


def deeper(pre_process=True, post_process=True):
    return as_megatron_lm(num_layers=3)


def shallower(pre_process=True, post_process=True):
    return as_megatron_lm(num_layers=1)


def wider(pre_process=True, post_process=True):
    return as_megatron_lm(ffn_hidden_size=64)


def with_head(pre_process=True, post_process=True):
    model = without_stage(pre_process, post_process)
    model.value_head = torch.nn.Linear(32, 1)
    return model


def no_model(pre_process=True, post_process=True):
    return torch.nn.Linear(2, 2)
"""
LOADED = "user_providers_"


@pytest.fixture
def providers(tmp_path: Path) -> Iterator[str]:
    """Path of a file with a user's functions."""
    file = tmp_path / "providers.py"
    file.write_text(PROVIDERS)
    yield str(file)
    for name in [name for name in sys.modules if name.startswith(LOADED)]:
        del sys.modules[name]


def seen() -> list[Any]:
    (module,) = (module for name, module in sys.modules.items() if name.startswith(LOADED))
    calls: list[Any] = module.SEEN
    return calls


@pytest.mark.parametrize("name", ["as_megatron_lm", "without_stage", "with_hook"])
def test_an_own_model_of_the_checkpoint_trains_to_the_same_weights(
    name: str, providers: str, tiny: Path, trainer: Trainer
) -> None:
    batch, algorithm = make_batch(), {"use_kl_loss": True, "kl_loss_coef": 0.1}
    with trainer(tiny, algorithm, lr=1e-2, custom_model_provider_path=f"{providers}:{name}") as rank:
        result, mine = rank.train(batch), weights(rank)
    assert set(result.functions) == {"custom_model_provider_path"}
    with trainer(tiny, algorithm, lr=1e-2) as rank:
        theirs = rank.train(batch)
        assert all(torch.equal(tensor, mine[key]) for key, tensor in weights(rank).items())
    assert result.optimizer_digest == theirs.optimizer_digest
    if name == "as_megatron_lm":
        assert seen() == [(True, True, None, 1e-2)] * 2, "the policy and its reference"
    assert ("forward" in seen()) is (name == "with_hook")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("deeper", PlugPointError, r"custom-model-provider-path.*decoder\.layers\.2"),
        ("shallower", CheckpointMismatch, r"model\.layers\.1.*unexpected"),
        ("wider", PlugPointError, r"linear_fc1\.weight has shape \[128, 32\].*\[96, 32\]"),
        ("with_head", PlugPointError, r"value_head"),
        ("no_model", PlugPointError, "Linear.*GPTModel"),
    ],
)
def test_another_model_is_refused_with_the_parameter(
    name: str, error: type[Exception], message: str, providers: str, tiny: Path, trainer: Trainer
) -> None:
    with (
        pytest.raises(error, match=f"(?s){message}"),
        trainer(tiny, custom_model_provider_path=f"{providers}:{name}"),
    ):
        pass


def test_megatron_s_settings_are_asked_for_inside_a_rank() -> None:
    from actors.megatron import own_model

    own_model._building.clear()
    with pytest.raises(PlugPointError, match="in a trainer's rank"):
        own_model.get_args()
