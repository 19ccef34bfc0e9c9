"""Samples that share prefixes get the log-probs, and give the gradient, that they would one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from actors.megatron import attention
from actors.megatron.attention_kernel import AttentionCall, AttentionKernel, kernel_for
from actors.megatron.forward import pack
from actors.megatron.tree_batch import TreeSequences, pack_tree
from actors.step.data_split import branch_tokens, layer_flops, sharing_pays, split_trees
from actors.step.micro_batch import MicroBatch
from schemas.errors import ImpossibleCombination
from slime_events.algorithms.packing import PackingRule
from slime_events.algorithms.prefix_tree import Branch
from slime_events.core.config.combinations import check_device
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.tokens.kept_tokens import KeptTokens, pack_kept
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from tests.megatron.test_decisions import SMALL
from tests.megatron.tiny import VOCAB, make_batch, make_model

Trainer = Callable[..., Any]
PROMPT = 6
CLOSE = 1e-5


def sample_of(name: str, tokens: Sequence[int], prompt: int, rng: np.random.Generator) -> TrainSample:
    response = len(tokens) - prompt
    return TrainSample(
        sample=name,
        group=name.partition("-")[0],
        rollout=name.rpartition("-")[0],
        tokens=np.array(tokens, np.int32),
        response_length=response,
        loss_mask=np.ones(response, np.int8),
        rollout_log_probs=rng.uniform(-5, -3, response).astype(np.float32),
        reward=float(rng.normal()),
        raw_reward=1.0,
        oldest_version=0,
        newest_version=0,
    )


def session(name: str, rng: np.random.Generator, *, leaves: int = 4, turns: int = 3) -> list[TrainSample]:
    """The paths of an agent's session: each continues a turn of an earlier one, and trains on what is new."""
    paths = [[*rng.integers(0, VOCAB, PROMPT)]]
    for _ in range(turns):
        paths[0] += [*rng.integers(0, VOCAB, 8)]
    for _ in range(leaves - 1):
        before = paths[rng.integers(len(paths))]
        paths.append([*before[: PROMPT + 8 * int(rng.integers(1, turns))], *rng.integers(0, VOCAB, 5)])
    samples, trained = [], set[tuple[int, ...]]()
    for number, path in enumerate(paths):
        sample = sample_of(f"{name}-s0-{number}", path, PROMPT, rng)
        prefixes = [tuple(path[: end + 1]) for end in range(PROMPT, len(path))]
        mask = np.array([prefix not in trained for prefix in prefixes], np.int8)
        trained.update(prefixes)
        samples.append(dataclasses.replace(sample, loss_mask=mask))
    return samples


def sessions(step: int = 0, count: int = 4) -> TrainBatch:
    rng = np.random.default_rng(step)
    return TrainBatch(step=step, samples=tuple(chain.from_iterable(session(f"g{n}", rng) for n in range(count))))


@st.composite
def trees(draw: st.DrawFn) -> list[TrainSample]:
    """Samples of a micro batch: twins, one that is another's prefix, several roots, prompts of several lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    paths: list[list[int]] = []
    for _ in range(draw(st.integers(2, 7))):
        before = draw(st.sampled_from(paths)) if paths and draw(st.booleans() | st.just(True)) else []
        kept = draw(st.integers(0, len(before)))
        size = draw(st.integers(max(0, 2 - kept), 12))
        paths.append([*before[:kept], *rng.integers(0, VOCAB, size)])
    samples_ = []
    for number, path in enumerate(paths):
        sample = sample_of(f"g0-s{number}-0", path, draw(st.integers(1, len(path) - 1)), rng)
        if draw(st.booleans()) and draw(st.booleans()):
            counts = np.full(sample.response_length, 9, np.int32)
            ids = np.concatenate([np.sort(rng.permutation(VOCAB)[:9]) for _ in counts])
            part = KeptTokens(0, pack_kept(counts, ids), sample.rollout_log_probs)
            sample = dataclasses.replace(sample, kept=(part,))
        samples_.append(sample)
    return samples_


def outcome(rank: Any, batch: MicroBatch) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Log-probs and entropies of each sample, and the gradient of a sum of both that has a weight for each token."""
    model = rank.trainee.model
    model.zero_grad_buffer()
    log_probs, entropy = rank.trainee.outputs_of(model, batch, 0.7, entropy_gradient=True)
    weights = torch.linspace(-1.0, 1.0, sum(map(len, log_probs)))
    (torch.cat(log_probs) * weights + torch.cat(entropy) * weights.flip(0)).sum().backward()
    return log_probs, entropy, torch.cat([parameter.main_grad.flatten() for parameter in model.parameters()]).clone()


def test_any_tree_gives_what_its_samples_give(tiny: Path, trainer: Trainer) -> None:
    """Everything shared that can be, whether it pays or not."""
    with trainer(tiny) as rank:

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(trees())
        def holds(samples: list[TrainSample]) -> None:
            device = rank.place.device
            tree = pack_tree(samples, device, lambda shared, length: True)
            ours, plain = outcome(rank, tree), outcome(rank, pack(samples, device))
            assert tree.token_ids.numel() <= sum(sample.total_length for sample in samples)
            for mine, other in zip(ours[:2], plain[:2], strict=True):
                assert list(map(len, mine)) == [sample.response_length for sample in samples]
                torch.testing.assert_close(torch.cat(mine), torch.cat(other), atol=CLOSE, rtol=CLOSE)
            largest = max(1.0, plain[2].abs().max().item())  # a gradient is a sum over tokens, and so is its rounding
            torch.testing.assert_close(ours[2], plain[2], atol=CLOSE * largest, rtol=CLOSE)

        holds()


@pytest.mark.parametrize("family", ["deepseek_v2_dense", "deepseek_v2"])
def test_latent_attention_gives_what_the_samples_give(family: str, tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path, family, tied=False)
    samples = list(sessions(count=2).samples)
    with trainer(tmp_path) as rank:
        tree = pack_tree(samples, rank.place.device, lambda shared, length: True)
        ours, plain = outcome(rank, tree), outcome(rank, pack(samples, rank.place.device))
    assert tree.token_ids.numel() < sum(sample.total_length for sample in samples)
    for mine, other in zip(ours[:2], plain[:2], strict=True):
        torch.testing.assert_close(torch.cat(mine), torch.cat(other), atol=CLOSE, rtol=CLOSE)
    largest = max(1.0, plain[2].abs().max().item())
    torch.testing.assert_close(ours[2], plain[2], atol=CLOSE * largest, rtol=CLOSE)


def test_a_branch_looks_at_its_own_ancestors_alone(tiny: Path, trainer: Trainer) -> None:
    """Change nothing, bit for bit, by the tokens of another leaf, but by those of the shared prefix."""
    rng = np.random.default_rng(1)
    prefix, tails = [*rng.integers(0, VOCAB, 20)], rng.integers(0, VOCAB, (3, 9))

    def first(prefix: list[int], second: Sequence[int]) -> Tensor:
        paths = [[*prefix, *tails[0]], [*prefix, *second]]
        samples = [sample_of(f"g-s{number}-0", path, PROMPT, rng) for number, path in enumerate(paths)]
        packed = pack_tree(samples, rank.place.device, lambda shared, length: True)
        assert packed.token_ids.numel() == 20 + 9 + 9
        log_probs: Tensor = rank.trainee.outputs_of(rank.trainee.model, packed, 1.0)[0][0]
        return log_probs.detach()

    with trainer(tiny) as rank:
        before = first(prefix, tails[1])
        assert torch.equal(first(prefix, tails[2]), before)
        assert not torch.equal(first([*prefix[:-1], (prefix[-1] + 1) % VOCAB], tails[1])[-9:], before[-9:])


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({}, {}),
    "entropy": ({"entropy_coef": 0.01, "calculate_per_token_loss": True}, {"log_probs_chunk_size": 7}),
    "two_steps": ({"use_rollout_entropy": True}, {"num_steps_per_rollout": 2, "use_dynamic_batch_size": True}),
    "kl": ({"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.1, "normalize_advantages": True}, {}),
    "critic": ({"advantage_estimator": "ppo", "gamma": 0.99}, {"critic_lr": 1e-3}),
    "supervised": ({"loss_type": "sft_loss", "compute_advantages_and_returns": False}, {}),
    "by_work": ({}, {"balance_by_flops": True, "recompute_loss_function": True, "deterministic_mode": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_sessions_is_the_same_step(case: str, tiny: Path, trainer: Trainer) -> None:
    algorithm, options = CASES[case]
    options = options | ({"max_tokens_per_gpu": 60} if "use_dynamic_batch_size" in options else {})
    results = []
    for on in (False, True):
        with trainer(tiny, algorithm, clip_grad=0.0, tree_packing=on, **options) as rank:
            metrics = [rank.train(sessions(step)).metrics for step in range(2)]
            results.append((metrics, {name: weight.clone() for name, weight in rank.export_weights()}))
    (plain, weights), (tree, same_weights) = results
    for ours, theirs in zip(tree, plain, strict=True):
        assert ours.pop("tokens_shared") > 0.3 * theirs["tokens"]
        for name in theirs:
            if not name.startswith("seconds_"):
                assert ours[name] == pytest.approx(theirs[name], abs=CLOSE, rel=CLOSE), name
    for name, weight in weights.items():
        torch.testing.assert_close(same_weights[name], weight, atol=2e-4, rtol=0)  # Adam makes much of rounding


def test_a_step_comes_back_bit_for_bit(tiny: Path, trainer: Trainer) -> None:
    digests = []
    for _ in range(2):
        with trainer(tiny, tree_packing=True) as rank:
            digests.append([rank.train(sessions(step)).optimizer_digest for step in range(2)])
    assert digests[0] == digests[1]


def test_where_nothing_is_shared_nothing_changes(tiny: Path, trainer: Trainer) -> None:
    """Bit for bit: prompts of a group that are too short for it, too."""
    apart = make_batch(samples=4)
    longer = [np.concatenate([[n], sample.tokens]).astype(np.int32) for n, sample in enumerate(apart.samples)]
    apart = TrainBatch(0, tuple(dataclasses.replace(a, tokens=b) for a, b in zip(apart.samples, longer, strict=True)))
    digests = []
    for on in (False, True):
        with trainer(tiny, tree_packing=on) as rank:
            result = rank.train(apart)
            digests.append(result.optimizer_digest)
    assert digests[0] == digests[1]
    assert result.metrics["tokens_shared"] == 0


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(20, 200), st.booleans())
def test_every_sample_is_dealt_once(seed: int, ranks: int, limit: int, by_work: bool) -> None:
    rng = np.random.default_rng(seed)
    sequences = [sample.tokens for name in "abcd" for sample in session(name, rng)]
    dealt = split_trees(sequences, PackingRule(limit, ranks=ranks), SMALL, by_work=by_work)
    assert len(dealt) == ranks
    assert all(dealt), "no rank is idle if there are enough sequences"
    batches = list(chain.from_iterable(dealt))
    assert sorted(chain.from_iterable(batches)) == list(range(len(sequences)))
    assert all(members == sorted(members) for members in batches)
    for members in batches:
        packed_samples = [sample_of("g-s-0", list(sequences[index]), 1, rng) for index in members]
        tokens = pack_tree(packed_samples, torch.device("cpu"), partial(sharing_pays, SMALL)).token_ids.numel()
        assert by_work or len(members) == 1 or tokens <= limit


def test_keys_that_are_laid_out_again_take_room_too() -> None:
    """Many short leaves behind a long prefix: by their own tokens alone they would all be one micro batch."""
    lengths, leaf = [1000] * 100, Branch(1, 990)
    assert branch_tokens(SMALL, lengths, Branch(0, 0)) == 1000
    keys = 2 * SMALL.num_query_groups * SMALL.kv_channels / (14 * SMALL.hidden_size + 5 * SMALL.ffn_hidden_size)
    assert branch_tokens(SMALL, lengths, leaf) == pytest.approx(10 + 1000 * keys, abs=1)
    rng = np.random.default_rng(0)
    prefix = rng.integers(0, VOCAB, 990)
    sequences = [np.concatenate([prefix, [n, *rng.integers(0, VOCAB, 9)]]).astype(np.int32) for n in range(60)]
    assert len(split_trees(sequences, PackingRule(3000), SMALL, by_work=False)[0]) > 1


@pytest.mark.parametrize(("ranks", "leaves"), [(2, [2, 2]), (4, [1, 1, 1, 1]), (5, [0, 1, 1, 1, 1])])
def test_the_paths_of_one_session_go_to_all_ranks(ranks: int, leaves: list[int]) -> None:
    rng = np.random.default_rng(0)
    prefix = rng.integers(0, VOCAB, 90)
    sequences = [np.concatenate([prefix, [n], rng.integers(0, VOCAB, 9)]).astype(np.int32) for n in range(4)]
    dealt = split_trees(sequences, PackingRule(1000, ranks=ranks, balance=True), SMALL, by_work=False)
    assert sorted(sum(map(len, batches)) for batches in dealt) == leaves


def test_leaves_of_a_session_come_together_from_anywhere_in_the_batch() -> None:
    rng = np.random.default_rng(0)
    two = [session(name, rng, leaves=3) for name in "ab"]
    mixed = [sample.tokens for pair in zip(*two, strict=True) for sample in pair]
    size = len({tuple(sample.tokens[:end]) for sample in two[0] for end in range(1, sample.total_length + 1)})
    assert sorted(split_trees(mixed, PackingRule(size + 20), SMALL, by_work=False)[0]) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(("shared", "tokens", "pays"), [(96, 128, True), (100, 4000, False), (2000, 4000, True)])
def test_a_prefix_is_shared_where_that_is_less_work(shared: int, tokens: int, pays: bool) -> None:
    """Behind a prefix attention has no causal kernel: with a long rest that costs more than the prefix saves."""
    assert sharing_pays(SMALL, shared, tokens) is pays
    assert (layer_flops(SMALL, tokens - shared, shared) < layer_flops(SMALL, tokens)) is pays


def test_a_gpu_is_refused(tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    check_device(TrainerSettings(tree_packing=True), cpu=True)
    check_device(TrainerSettings(), cpu=False)
    monkeypatch.setattr("actors.megatron.rank.on_cpu", lambda: False)
    with pytest.raises(ImpossibleCombination, match="CPU"), trainer(tiny, tree_packing=True):
        pass


def test_a_mask_is_held_for_shared_prefixes_alone() -> None:
    rng = np.random.default_rng(0)
    roots = [sample_of(f"g{n}-s-0", [n, *rng.integers(0, VOCAB, 30)], PROMPT, rng) for n in range(3)]
    leaf = sample_of("g0-s-1", [*roots[0].tokens[:25], *[VOCAB - 1] * 5], PROMPT, rng)
    packed = pack_tree([*roots, leaf], torch.device("cpu"), lambda shared, length: shared > 1).packed
    assert isinstance(packed, TreeSequences)
    assert [None if mask is None else tuple(mask.shape) for mask in packed.masks] == [None, (1, 1, 5, 30)]


def test_the_choice_of_a_kernel_hears_of_shared_prefixes(
    tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choose no kernel by lengths alone: they do not show what a branch attends to."""
    calls: list[AttentionCall] = []

    def noted(call: AttentionCall) -> AttentionKernel:
        calls.append(call)
        return kernel_for(call)

    monkeypatch.setattr(attention, "kernel_for", noted)
    with trainer(tiny) as rank:
        outcome(rank, pack_tree(session("g0", np.random.default_rng(0)), rank.place.device, lambda *_: True))
    assert calls
    assert all(call.shares for call in calls)
