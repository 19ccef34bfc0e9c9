"""`check_vocabulary`: compare the tokens of two models."""

from __future__ import annotations

import json
from pathlib import Path

from actors.megatron.families.registry import read_architecture
from schemas.errors import CheckpointMismatch


def check_vocabulary(student: str | Path, teacher: str | Path) -> None:
    """Raise CheckpointMismatch if student and teacher, two Hugging Face folders, do not assign the same ids to tokens.

    Models of one tokenizer may differ in the padded size of their embeddings.
    """
    sizes = [read_architecture(folder).vocab_size for folder in (student, teacher)]
    ids = [_token_ids(Path(folder) / "tokenizer.json") for folder in (student, teacher)]
    if None in ids:
        if sizes[0] == sizes[1]:
            return
        raise CheckpointMismatch(f"{teacher} has {sizes[1]} tokens, {student} has {sizes[0]}: {_ONE_VOCABULARY}")
    ours, theirs = (table or {} for table in ids)
    if apart := sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)):
        token = apart[0]
        raise CheckpointMismatch(
            f"{teacher} and {student} differ in {len(apart)} tokens; the first is {token!r} with ids "
            f"{theirs.get(token)} and {ours.get(token)}: {_ONE_VOCABULARY}"
        )


_ONE_VOCABULARY = "the teacher scores the student's tokens, so use a teacher of the same model family"


def _token_ids(path: Path) -> dict[str, int] | None:
    """Return token -> id of a tokenizer file; None if there is no file, or if its format has no such table."""
    try:
        parsed = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    table = parsed.get("model", {}).get("vocab")
    if not isinstance(table, dict):
        return None
    return table | {token["content"]: token["id"] for token in parsed.get("added_tokens", ())}
