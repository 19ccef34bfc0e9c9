"""Settings of the trainer's folders: the weights that it starts from, and the checkpoints that it saves."""

from typing import Annotated

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import Later, needs, unused_without
from slime_events.core.config.save_steps import SaveSteps

_OF_A_SAVE = unused_without("save_interval", why="save_interval is not set (it has a default on GPUs)")


class FolderSettings(Settings, frozen=True, kw_only=True):
    """The folders of a trainer. They are settings of the component `trainer`."""

    LATER = Settings.LATER | Later.LEARN

    hf_checkpoint: Annotated[str, doc("Hugging Face folder of tokenizer, config and first weights")] = ""
    ref_load: Annotated[
        str | None,
        doc(
            "folder of the reference model (Hugging Face or torch_dist); default: hf-checkpoint",
            unused_without(
                "use_kl_loss", "kl_coef", why="neither use_kl_loss nor kl_coef is set, so there is no reference model"
            ),
        ),
    ] = None
    ref_ckpt_step: Annotated[
        int | None,
        doc(
            "iteration of ref-load, if it is a torch_dist folder; default: the newest",
            needs("ref_load", why="it chooses one of its iterations"),
            least=0,
        ),
    ] = None
    opd_teacher_load: Annotated[
        str | None,
        doc(
            "Hugging Face folder of the teacher of use-opd, of any size; it must have the student's vocabulary",
            needs("use_opd", why="without it there is no teacher"),
        ),
    ] = None
    load: Annotated[str | None, doc("trainer checkpoint, Hugging Face folder or torch_dist folder to start from")] = (
        None
    )
    ckpt_step: Annotated[
        int | None,
        doc(
            "iteration of load, if it is a torch_dist folder; default: the newest",
            needs("load", why="it chooses one of its iterations"),
            least=0,
        ),
    ] = None
    load_optim: Annotated[
        bool, doc("load optimizer and schedule of load too, not only its weights", unused_without("load"))
    ] = True
    save: Annotated[str | None, doc("folder or fsspec URL for trainer checkpoints; default: the run folder")] = None
    save_interval: Annotated[
        int | None,
        doc(
            "save a checkpoint every N steps, at the end of an epoch, and after the last step; 0: none; "
            "default on GPU: "
            "20, and only the newest 2 are kept; default on CPU: none",
            least=0,
        ),
    ] = None
    save_epoch: Annotated[
        int | None,
        doc(
            "with save-interval: save every N steps too; num-epoch sets it to the steps of an epoch",
            _OF_A_SAVE,
            above=0,
        ),
    ] = None
    save_last: Annotated[
        int | None, doc("with save-interval: save after step N too; default: the last step", _OF_A_SAVE, above=0)
    ] = None
    async_save: Annotated[
        bool,
        doc(
            "copy a checkpoint to host memory and write it while the next steps train; the log has it once on disk",
            _OF_A_SAVE,
        ),
    ] = False
    save_hf: Annotated[
        str | None,
        doc(
            "path with {rollout_id}: save the weights of each checkpoint as a Hugging Face folder too",
            _OF_A_SAVE,
            also=Later.RESUME,
        ),
    ] = None
    keep_checkpoints: Annotated[
        int, doc("keep the newest N checkpoints on disk; 0: all", least=0, also=Later.RESUME)
    ] = 0
    keep_checkpoints_every: Annotated[
        int | None,
        doc(
            "also keep the checkpoint of every Nth version, permanently",
            needs("keep_checkpoints", why="keep_checkpoints 0 keeps all"),
            above=0,
            also=Later.RESUME,
        ),
    ] = None

    @property
    def saves(self) -> SaveSteps:
        """The versions whose checkpoint is saved."""
        return SaveSteps(self.save_interval or None, self.save_epoch, self.save_last)
