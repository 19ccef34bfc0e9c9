"""slime's small helpers that users' files import: coroutines from plain code, singletons, tokenizers, images."""

import asyncio
import base64
import importlib
import io
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from schemas.errors import MissingPart
from slime_events.plugins import tokenizer

T = TypeVar("T")


@cache
def get_async_loop() -> asyncio.AbstractEventLoop:
    """Return the process's event loop for `run`, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="slime-async", daemon=True).start()
    return loop


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Return a coroutine's result, for code that is not async."""
    return asyncio.run_coroutine_threadsafe(coro, get_async_loop()).result()


class SingletonMeta(type):
    """Metaclass of a class with one instance: the first."""

    _instances: dict[type, Any] = {}

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        if cls not in SingletonMeta._instances:
            SingletonMeta._instances[cls] = super().__call__(*args, **kwargs)
        return SingletonMeta._instances[cls]


def should_run_periodic_action(
    rollout_id: int, interval: int | None, num_rollout_per_epoch: int | None = None, num_rollout: int | None = None
) -> bool:
    """Return whether an action is due after rollout `rollout_id` (the first is 0): after every `interval` rollouts, at
    the end of an epoch, and after the last rollout. Without an interval it is never due.
    """
    done, every = rollout_id + 1, num_rollout_per_epoch
    return interval is not None and (done == num_rollout or done % interval == 0 or bool(every and done % every == 0))


def load_tokenizer(name_or_path: str, **kwargs: object) -> tokenizer.Tokenizer:
    """Return the tokenizer of an HF folder, loaded once. Raises InvalidValue if the folder holds none.

    Code in the checkpoint is never run: `trust_remote_code` has no effect.
    """
    return _tokenizer(str(name_or_path))


_tokenizer = cache(tokenizer.load_tokenizer)


def load_processor(name_or_path: str, **kwargs: object) -> Any:
    """Return the image processor of a checkpoint; None for a text model."""
    from transformers import AutoProcessor, PreTrainedTokenizerBase

    try:
        processor = AutoProcessor.from_pretrained(name_or_path, local_files_only=True)
    except (ImportError, OSError, ValueError):
        return None
    return None if isinstance(processor, PreTrainedTokenizerBase) else processor


def process_vision_info(prompt: object, processor: Any) -> dict[str, Any]:
    """Return the images and videos of chat messages. Raises MissingPart without the package qwen-vl-utils."""
    try:
        read = importlib.import_module("qwen_vl_utils").process_vision_info
    except ImportError as error:
        raise MissingPart("process_vision_info needs the package qwen-vl-utils: pip install qwen-vl-utils") from error
    images, videos = read(prompt, image_patch_size=getattr(processor.image_processor, "patch_size", 14))
    return {"images": images, "videos": videos}


def build_processor_kwargs(multimodal_inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of a processor: token ids as lists, images, videos and audio as tensors."""
    kwargs = dict(multimodal_inputs or {})
    tensors = {name: {**kwargs.get(name, {}), "return_tensors": "pt"} for name in _MEDIA}
    return kwargs | {"text_kwargs": {**kwargs.get("text_kwargs", {}), "return_tensors": None}} | tensors


_MEDIA = ("audio_kwargs", "images_kwargs", "videos_kwargs")


def encode_image_for_rollout_engine(image: Any) -> str:
    """Return a PIL image in the form of SGLang's `image_data`: a data URL of an RGB PNG."""
    buffer = io.BytesIO()
    (image if image.mode == "RGB" else image.convert("RGB")).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
