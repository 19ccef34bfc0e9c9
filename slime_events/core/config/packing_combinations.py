"""What `tree_packing` cannot be combined with: see `slime_events/algorithms/prefix_tree.py` for what it is."""

from collections.abc import Iterator

from schemas.errors import ImpossibleCombination
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings


def packed_as_trees(settings: TrainSettings) -> Iterator[str]:
    """See `impossible`."""
    trainer = settings.trainer
    if not trainer.tree_packing:
        return
    if trainer.micro_batch_size != 1 and not trainer.use_dynamic_batch_size:
        yield (
            f"tree_packing excludes micro_batch_size {trainer.micro_batch_size} without use_dynamic_batch_size: what "
            "shares a prefix is put together by tokens, not by samples."
        )
    if settings.algorithm.loss_type == "custom_loss":
        yield "tree_packing excludes loss_type custom_loss: your function is given the logits of samples end to end."
    if trainer.custom_model_provider_path:
        yield "tree_packing excludes custom_model_provider_path: your model is not known to take a token's position."
    if settings.run.tinker is not None:
        yield "tree_packing excludes tinker: the datums of a client's passes are packed as they come."


def check_device(trainer: TrainerSettings, *, cpu: bool) -> None:
    """Raises ImpossibleCombination for what ranks on that device cannot do."""
    if trainer.tree_packing and not cpu:
        raise ImpossibleCombination(
            "tree_packing is for trainer ranks on the CPU: attention over packed sequences on a GPU (Transformer "
            "Engine's) is given lengths and no mask, so no sample could look at a prefix that it shares. Leave it out"
        )
