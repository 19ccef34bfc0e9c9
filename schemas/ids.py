"""Ids of groups, samples and evaluations. Only this file writes and parses them.

train-0-000007          group of a prompt file: data set, epoch, row
eval-held-v7-000003     group of an evaluation: data set, version, row
loaded-2-000001         group of a dump: step, index
inbox-<16 hex digits>   group of a prompt from outside: hash of the sender's key
draw-000007             group of a sampler's draw; `again-` if it is drawn from an archive
brought-000007          group of a rollout function
call-3-<16 hex digits>  generations that a rollout function requested in step 3; `call-eval3-` for version 3
turn-5-<sample>         generation of an agent's turn
step-3, evaluated-3     result of a rollout function
<sample>.0              session of an agent: attempt
<group>-s3              sample 3 of a group, from 0
<group>-s3-1            second sample of the same rollout
"""

import functools
import hashlib

TRAIN, INBOX, LOADED, BROUGHT = "train", "inbox", "loaded", "brought"
"""Names of a run's own data sets: its file, prompts from outside, prompts with recorded answers, prompts of a rollout
function.
"""


def group_id(dataset: str, epoch: int, row: int) -> str:
    """Return the group id of a file's row in one pass over the file; for a dump, of a step and the group's index."""
    return f"{dataset}-{epoch}-{row:06d}"


def bad_line_id(dataset: str, epoch: int, line: int) -> str:
    """Return the id of a file's unusable line, which has no group."""
    return f"{dataset}-{epoch}-line{line}"


def inbox_group_id(key: str, sender: str = "") -> str:
    """Return the group id of a prompt from outside, equal for equal key and sender. sender: up to 64 ASCII letters."""
    return f"{INBOX}-{hashlib.blake2b(key.encode(), digest_size=8, key=sender.encode()).hexdigest()}"


def is_inbox_group(group: str) -> bool:
    """Return whether a group's prompt came from outside."""
    return group.startswith(f"{INBOX}-")


def draw_id(offset: int, *, again: bool) -> str:
    """Return the group id of a sampler's draw. again: the prompt is drawn from an archive."""
    return f"{'again' if again else 'draw'}-{offset:06d}"


def brought_group_id(offset: int) -> str:
    return f"{BROUGHT}-{offset:06d}"


def call_group_id(step: int, digest: str, *, evaluation: bool) -> str:
    """Return the group id of equal generations that a rollout function requests in one call. digest: of the request."""
    return f"call-{'eval' if evaluation else ''}{step}-{digest[:16]}"


def turn_group_id(sample: str, turn: int) -> str:
    return f"turn-{turn}-{sample}"


def turn_of_group(group: str) -> tuple[str, int] | None:
    """Return (sample, turn) if the group is the generation of an agent's turn, else None."""
    kind, _, rest = group.partition("-")
    turn, _, sample = rest.partition("-")
    return (sample, int(turn)) if kind == "turn" and sample and turn.isdecimal() and turn.isascii() else None


def session_name(sample: str, attempt: int) -> str:
    """Return the name of an agent's session. No subject contains it; its point occurs in no sample id."""
    return f"{sample}.{attempt}"


def session_of(name: str) -> tuple[str, int] | None:
    """Return (sample, attempt) of a session's name, or None if it is not one."""
    sample, point, attempt = name.rpartition(".")
    return (sample, int(attempt)) if point and attempt.isdecimal() and attempt.isascii() else None


def returned_id(step: int, *, evaluation: bool) -> str:
    """Return the entity of a rollout function's result, for a step or the evaluation of a version."""
    return f"{'evaluated' if evaluation else 'step'}-{step}"


def evaluation_id(dataset: str, version: int) -> str:
    return f"{dataset}-v{version}"


def evaluation_group_id(dataset: str, version: int, row: int) -> str:
    return f"eval-{evaluation_id(dataset, version)}-{row:06d}"


def is_of_evaluation(group: str, dataset: str, version: int) -> bool:
    return group.rpartition("-")[0] == f"eval-{evaluation_id(dataset, version)}"


def evaluation_row(group: str) -> int | None:
    """Return the row of a group in its evaluation's data set, or None for a group of training."""
    row = group.rpartition("-")[2]
    return int(row) if group.startswith("eval-") and row.isdigit() else None


def sample_id(group: str, index: int) -> str:
    return f"{group}-s{index}"


def sibling_id(sample: str, number: int) -> str:
    """Return the id of an additional sample of the rollout of `sample`, from 1; 0 is the sample itself."""
    return f"{sample}-{number}" if number else sample


def group_of(sample: str) -> str:
    return sample.rpartition("-s")[0]


def requested_sample(sample: str) -> str:
    """Return the requested sample: `sample` itself, unless it is an additional sample of a rollout."""
    return sample_id(group_of(sample), order_in_group(sample)[0])


@functools.lru_cache(maxsize=4096)
def order_in_group(sample: str) -> tuple[int, int]:
    """Return (index, number) of a sample within its group, by which a group's samples are sorted."""
    index, _, number = sample.rpartition("-s")[2].partition("-")
    return int(index), int(number or 0)


def sample_seed(seed: int, sample: str) -> int:
    """Return a seed of 31 bits that depends only on the run's seed and the sample."""
    digest = hashlib.blake2b(f"{seed}:{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF
