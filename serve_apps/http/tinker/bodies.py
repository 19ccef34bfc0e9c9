"""JSON bodies of the protocol. Fields that are not listed here have no effect."""

from typing import Annotated, Any

import msgspec

from schemas.doc import doc


class OfModel(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a model."""

    model_id: str
    seq_id: Annotated[int | None, doc("number among the model's calls, from 1; they run in this order")] = None


class CreateModel(msgspec.Struct, frozen=True):
    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: dict[str, Any] | None = None
    optimizer_config: dict[str, Any] = {}


class LoadWeights(msgspec.Struct, frozen=True):
    """Loads weights into a model, or into a new model of a session."""

    path: str
    optimizer: Annotated[bool, doc("load the optimizer's state too")]
    model_id: Annotated[str | None, doc("model to load into; None: a new one of `session_id`")] = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None


class OptimStep(OfModel, frozen=True, kw_only=True):
    adam_params: dict[str, Any] = {}
    optimizer_params: Annotated[dict[str, Any] | None, doc("parameters of other optimizers, which are refused")] = None


class SaveWeights(OfModel, frozen=True, kw_only=True):
    path: Annotated[str | None, doc("name to save under")] = None


class SaveWeightsForSampler(SaveWeights, frozen=True, kw_only=True):
    """Saves weights to sample from. If `path` is None, the answer has a sampling session."""

    kind: str = "snapshot"


class CreateSamplingSession(msgspec.Struct, frozen=True):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class WeightsInfo(msgspec.Struct, frozen=True):
    tinker_path: str


class RetrieveFuture(msgspec.Struct, frozen=True):
    request_id: str
