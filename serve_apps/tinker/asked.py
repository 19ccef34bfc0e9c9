"""JSON bodies of the protocol, as far as this server looks at them: fields that are not named here change nothing."""

from typing import Any

import msgspec


class OfModel(msgspec.Struct, frozen=True, kw_only=True):
    """seq_id: of the model's calls, from 1: they are carried out in this order."""

    model_id: str
    seq_id: int | None = None


class CreateModel(msgspec.Struct, frozen=True):
    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: dict[str, Any] | None = None
    optimizer_config: dict[str, Any] = {}


class LoadWeights(msgspec.Struct, frozen=True):
    """Into a model, or as the first of a new one of a session."""

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None


class OptimStep(OfModel, frozen=True, kw_only=True):
    """optimizer_params: of other optimizers than Adam."""

    adam_params: dict[str, Any] = {}
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(OfModel, frozen=True, kw_only=True):
    """path: the name to save under."""

    path: str | None = None


class SaveWeightsForSampler(SaveWeights, frozen=True, kw_only=True):
    """Without a path the answer is a sampling session."""

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
