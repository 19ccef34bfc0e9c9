"""Settings that `tree_packing` excludes; `slime_events/algorithms/prefix_tree.py` describes tree packing."""

from collections.abc import Iterator

from schemas.errors import ImpossibleCombination
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings


def packed_as_trees(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each problem, for `impossible`."""
    trainer = settings.trainer
    if not trainer.tree_packing:
        return
    if trainer.micro_batch_size != 1 and not trainer.use_dynamic_batch_size:
        yield (
            f"tree_packing excludes micro_batch_size {trainer.micro_batch_size} without use_dynamic_batch_size: it "
            "packs samples that share a prefix by tokens, not by samples."
        )
    if settings.algorithm.loss_type == "custom_loss":
        yield "tree_packing excludes loss_type custom_loss: your function expects the logits of each whole sample."
    if trainer.custom_model_provider_path:
        yield "tree_packing excludes custom_model_provider_path: your model may not accept position ids."
    if settings.run.tinker is not None:
        yield "tree_packing excludes tinker: a client's datums are packed in their order."


def check_device(trainer: TrainerSettings, *, cpu: bool) -> None:
    """Raise ImpossibleCombination if ranks on that device do not support a setting."""
    if trainer.tree_packing and not cpu:
        raise ImpossibleCombination(
            "tree_packing is for trainer ranks on the CPU: Transformer Engine's attention over packed sequences takes "
            "lengths and no mask, so a sample on a GPU could not attend to a shared prefix. Leave it out"
        )
