"""`show RUN --step N` and `--version V`: a step with its batch and result; a weight version and its use."""

from typing import Any

from schemas.groups import GroupAccepted
from schemas.prompts import as_text
from slime_events.app.cli.render.evals import evals_text
from slime_events.app.cli.render.json_values import plain
from slime_events.app.cli.render.text import (
    clock,
    fields,
    paragraphs,
    restored_text,
    shorten,
    spans_text,
    table,
)
from slime_events.model import Group, Run, Sample, Step, Version

LABEL_WIDTH = 24


def step_facts(run: Run, step: Step) -> dict[str, Any]:
    """Return batch, samples in training order, metrics and digests; `committed` is null until the step is trained."""
    batch = step.sealed.event
    return {
        "step": step.step,
        "sealed_at": step.sealed.at,
        "batch_digest": batch.digest,
        "oldest_version": batch.oldest_version,
        "groups": [_group(run.groups[group]) for group in batch.groups],
        "samples": [
            {"sample": name, "reward": raw, "normalised": reward, **_rollout(run.samples.get(name))}
            for name, raw, reward in zip(batch.samples, batch.raw_rewards, batch.rewards, strict=True)
        ],
        "commands": list(batch.commands),
        "committed": plain(step.committed.event) if step.committed else None,
        "committed_at": step.committed.at if step.committed else None,
        "version": run.version_of_step(step.step),
    }


def _group(group: Group) -> dict[str, Any]:
    verdict = group.verdict.event if group.verdict else None
    prompt = group.prompt.event if group.prompt else None
    return {
        "group": group.group,
        "dataset": prompt.dataset if prompt else "",
        "label": prompt.label if prompt else None,
        "rewards": list(verdict.rewards if isinstance(verdict, GroupAccepted) else ()),
    }


def _rollout(sample: Sample | None) -> dict[str, Any]:
    done = sample.completed.event if sample and sample.completed else None
    return {
        "length": sample.length if sample else 0,
        "stop": done.stop.value if done else None,
        "versions": spans_text(sample.spans) if sample else "",
        "digest": done.digest if done else "",
    }


def version_facts(run: Run, version: Version) -> dict[str, Any]:
    """Return the version's publication, step, activations, evaluations and checkpoint."""
    number, branched = version.version, run.branched
    return {
        "version": number,
        "published": plain(version.published.event) if version.published else None,
        "published_at": version.published.at if version.published else None,
        "step": version.committed.event.step if version.committed else None,
        "branched": plain(branched) if branched and branched.version == number else None,
        "activations": [plain(activation.event) for activation in version.activations],
        "evals": [plain(done.event) for done in run.evals if done.event.version == number],
        "checkpoint": plain(version.checkpoint.event) if version.checkpoint else None,
        "restored": [plain(entry.event) for entry in version.restored],
    }


def step_text(facts: dict[str, Any]) -> str:
    """Return `step_facts` as text for a terminal."""
    done = facts["committed"] or {}
    head = fields([
        ("step", facts["step"]),
        ("sealed", f"{clock(facts['sealed_at'])}, oldest weights v{facts['oldest_version']}"),
        ("trained", f"v{done['parent_version']} -> v{done['version']} at {clock(facts['committed_at'])}"
                    if done else "not yet"),
        ("size", f"{len(facts['commands'])} commands of a client" if facts["commands"]
                 else f"{len(facts['groups'])} groups, {len(facts['samples'])} samples"),
        ("commands", "\n".join(facts["commands"]) or None),
        ("tokens", done.get("tokens")),
        ("batch", facts["batch_digest"]),
        ("weights", done.get("weights_digest")),
        ("optimizer", done.get("optimizer_digest")),
        ("critic", done.get("critic_digest")),
    ])  # fmt: skip
    groups = [
        (g["group"], g["dataset"], shorten(as_text(g["label"]), LABEL_WIDTH), " ".join(f"{r:g}" for r in g["rewards"]))
        for g in facts["groups"]
    ]
    samples = [
        (s["sample"], f"{s['reward']:.3f}", f"{s['normalised']:.3f}", s["length"], s["stop"], s["versions"],
         s["digest"][:12])
        for s in facts["samples"]
    ]  # fmt: skip
    return paragraphs(
        head,
        *(
            []
            if facts["commands"]
            else [
                table(("group", "from", "label", "rewards"), groups),
                table(("sample", "reward", "normalised", "length", "stop", "versions", "digest"), samples),
            ]
        ),
        *(f"{name}\n{fields(sorted(done[name].items()), '  ')}" for name in ("metrics", "seconds") if done.get(name)),
    )


def version_text(facts: dict[str, Any]) -> str:
    """Return `version_facts` as text for a terminal."""
    published, checkpoint, branched = facts["published"] or {}, facts["checkpoint"] or {}, facts["branched"]
    maker = f"{branched['run']}, the parent run" if branched else "nobody: the run begins with it"
    head = fields([
        ("version", facts["version"]),
        ("made by", maker if facts["step"] is None else f"step {facts['step']} from v{published.get('parent')}"),
        ("published", f"{clock(facts['published_at'])}, {published['kind']}, {published['bytes'] / 1e6:.1f} MB"
                      if published else "not published"),
        ("folder", published.get("url")),
        ("digest", published.get("digest")),
        ("checkpoint", checkpoint.get("url")),
        *(("restored", f"by {event['trainer']}: {restored_text(event)}") for event in facts["restored"]),
    ])  # fmt: skip
    loads = [(a["engine"], f"{a['seconds']:.3f}", f"{a['lag']:.3f}", a["resumed"]) for a in facts["activations"]]
    return paragraphs(
        head,
        table(("engine", "update s", "after publication s", "continued rollouts"), loads) if loads else "",
        evals_text(facts["evals"]),
    )
