"""slime's reader of the prompt file, to be inherited from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.data_source import DataSource
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function
from tests.simulation.parts import Letters

MINE = """
from slime.rollout.data_source import RolloutDataSource

class Odd(RolloutDataSource):
    def get_samples(self, num_samples):
        groups = super().get_samples(2 * num_samples)
        return [group for group in groups if int(group[0].label) % 2]
"""


def test_a_class_over_slimes_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.loop.prompts.data_source.load_tokenizer", lambda folder: Letters())
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"input": "n {n}", "label": {n}}}\n' for n in range(5)))
    (tmp_path / "mine.py").write_text(MINE)
    data = DataSettings(prompt_data=str(tmp_path / "rows.jsonl"), label_key="label", apply_chat_template=True)
    more = {"n_samples_per_prompt": 3, "rollout_seed": 1, "hf_checkpoint": "base"}
    source = load_function(f"{tmp_path}/mine.py:Odd")(ArgsView({**msgspec.to_builtins(data), **more}))
    groups = [*source.get_samples(2), *source.get_samples(2)]
    firsts = [group[0] for group in groups]
    assert [(one.prompt, one.label, one.index) for one in firsts] == [
        ("<user>n 1", 1, 3),
        ("<user>n 3", 3, 9),
        ("<user>n 1", 1, 18),
    ]
    assert {len(group) for group in groups} == {3}
    assert len(source) == 5
    with pytest.raises(NotImplementedError, match="DataSource has no get_samples"):
        DataSource().get_samples(1)
