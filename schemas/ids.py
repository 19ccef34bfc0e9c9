"""Ids of groups, samples and evaluations: their grammar is written and parsed here alone.

train-0-000007         group: data set, epoch, row of the file          inbox-<16 hex digits>   by the sender's key
eval-held-v7-000003    of an evaluation: data set, version, row         draw-000007             by the log; `again-`
loaded-2-000001        of a dump: step, place                                                   of an archive
brought-000007         by a rollout function                    call-3-<16 hex digits>   generations that it asked
step-3, evaluated-3    what a rollout function returned                                 for in step 3, `eval3` of v3
turn-5-<sample>        the generation of an agent's turn       <sample>.0               an agent's session, by attempt
<group>-s3             sample: the group's third, from 0                <group>-s3-1            the rollout's second
"""

import functools
import hashlib

TRAIN, INBOX, LOADED, BROUGHT = "train", "inbox", "loaded", "brought"
"""Data sets of prompts that a run names itself: its file, prompts from outside, those with recorded answers, those that
a rollout function brought.
"""


def group_id(dataset: str, epoch: int, row: int) -> str:
    """Of a row of a file in one pass over it; of a dump the step and the group's place."""
    return f"{dataset}-{epoch}-{row:06d}"


def bad_line_id(dataset: str, epoch: int, line: int) -> str:
    """Instead of a group's, for a line of a file that cannot be used."""
    return f"{dataset}-{epoch}-line{line}"


def inbox_group_id(key: str, sender: str = "") -> str:
    """Of a prompt from outside: the same key of the same sender is the same group. sender: up to 64 ASCII letters."""
    return f"{INBOX}-{hashlib.blake2b(key.encode(), digest_size=8, key=sender.encode()).hexdigest()}"


def draw_id(offset: int, *, again: bool) -> str:
    """Of a prompt that a sampler draws by the statistics of the log; again: out of an archive."""
    return f"{'again' if again else 'draw'}-{offset:06d}"


def brought_group_id(offset: int) -> str:
    """Of a group that a rollout function brought."""
    return f"{BROUGHT}-{offset:06d}"


def call_group_id(step: int, digest: str, *, evaluation: bool) -> str:
    """Of equal generations that a rollout function asks for in one call. digest: of the question, hex."""
    return f"call-{'eval' if evaluation else ''}{step}-{digest[:16]}"


def turn_group_id(sample: str, turn: int) -> str:
    """Of the generation of an agent's turn."""
    return f"turn-{turn}-{sample}"


def turn_of_group(group: str) -> tuple[str, int] | None:
    """(sample, turn) of the generation of an agent's turn; None for another group."""
    kind, _, rest = group.partition("-")
    turn, _, sample = rest.partition("-")
    return (sample, int(turn)) if kind == "turn" and sample and turn.isdecimal() and turn.isascii() else None


def session_name(sample: str, attempt: int) -> str:
    """Of an agent's session: no subject has it, and no sample a point."""
    return f"{sample}.{attempt}"


def session_of(name: str) -> tuple[str, int] | None:
    """(sample, attempt) of a session's name; None where it is none."""
    sample, point, attempt = name.rpartition(".")
    return (sample, int(attempt)) if point and attempt.isdecimal() and attempt.isascii() else None


def returned_id(step: int, *, evaluation: bool) -> str:
    """What a rollout function returned, of a step or of the evaluation of a version."""
    return f"{'evaluated' if evaluation else 'step'}-{step}"


def evaluation_id(dataset: str, version: int) -> str:
    """One data set, evaluated with one weight version."""
    return f"{dataset}-v{version}"


def evaluation_group_id(dataset: str, version: int, row: int) -> str:
    """A group of an evaluation."""
    return f"eval-{evaluation_id(dataset, version)}-{row:06d}"


def is_of_evaluation(group: str, dataset: str, version: int) -> bool:
    """Whether a group belongs to an evaluation."""
    return group.rpartition("-")[0] == f"eval-{evaluation_id(dataset, version)}"


def evaluation_row(group: str) -> int | None:
    """The row of its data set that a group of an evaluation is of; None for any other group."""
    row = group.rpartition("-")[2]
    return int(row) if group.startswith("eval-") and row.isdigit() else None


def sample_id(group: str, index: int) -> str:
    """The sample that is requested as the group's `index`-th."""
    return f"{group}-s{index}"


def sibling_id(sample: str, number: int) -> str:
    """Another sample of the rollout of `sample`, counted from 1; 0 is the sample itself."""
    return f"{sample}-{number}" if number else sample


def group_of(sample: str) -> str:
    """The group that a sample belongs to."""
    return sample.rpartition("-s")[0]


def requested_sample(sample: str) -> str:
    """The sample whose rollout this one came of: itself, but for the further ones of a rollout that gave several."""
    return sample_id(group_of(sample), order_in_group(sample)[0])


@functools.lru_cache(maxsize=4096)
def order_in_group(sample: str) -> tuple[int, int]:
    """(index, number) of a sample within its group: the order of a group's samples. A reader looks several times."""
    index, _, number = sample.rpartition("-s")[2].partition("-")
    return int(index), int(number or 0)
