"""Small helpers of slime's that users' files import: coroutines from plain code, singletons, tokenizers, images."""

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
    """An event loop in a thread of its own, one for the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="slime-async", daemon=True).start()
    return loop


def run(coro: Coroutine[Any, Any, T]) -> T:
    """A coroutine's result, for code that is not async."""
    return asyncio.run_coroutine_threadsafe(coro, get_async_loop()).result()


class SingletonMeta(type):
    """A class with this metaclass has one instance: the first."""

    _instances: dict[type, Any] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls not in SingletonMeta._instances:
            SingletonMeta._instances[cls] = super().__call__(*args, **kwargs)
        return SingletonMeta._instances[cls]


def should_run_periodic_action(
    rollout_id: int, interval: int | None, num_rollout_per_epoch: int | None = None, num_rollout: int | None = None
) -> bool:
    """Whether something that is done every `interval` rollouts is due after this one, the first being 0: then, at the
    end of an epoch, and after the last. Without an interval never.
    """
    done, every = rollout_id + 1, num_rollout_per_epoch
    return interval is not None and (done == num_rollout or done % interval == 0 or bool(every and done % every == 0))


def load_tokenizer(name_or_path: str, **kwargs: Any) -> Any:
    """The tokenizer of an HF folder, read once. Code of the checkpoint's own is not run: `trust_remote_code` has no
    effect. Raises InvalidValue where the folder holds none.
    """
    return _tokenizer(str(name_or_path))


_tokenizer = cache(tokenizer.load_tokenizer)


def load_processor(name_or_path: str, **kwargs: Any) -> Any:
    """The processor of images, of a checkpoint that has one; None for a model of text."""
    from transformers import AutoProcessor, PreTrainedTokenizerBase

    try:
        processor = AutoProcessor.from_pretrained(name_or_path, local_files_only=True)
    except (ImportError, OSError, ValueError):
        return None
    return None if isinstance(processor, PreTrainedTokenizerBase) else processor


def process_vision_info(prompt: Any, processor: Any) -> dict[str, Any]:
    """The images and videos of chat messages. Raises MissingPart without the package qwen-vl-utils."""
    try:
        read = importlib.import_module("qwen_vl_utils").process_vision_info
    except ImportError as error:
        raise MissingPart("process_vision_info needs the package qwen-vl-utils: pip install qwen-vl-utils") from error
    images, videos = read(prompt, image_patch_size=getattr(processor.image_processor, "patch_size", 14))
    return {"images": images, "videos": videos}


def build_processor_kwargs(multimodal_inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a processor: token ids as lists, images, videos and audio as tensors."""
    given = dict(multimodal_inputs or {})
    tensors = {name: {**given.get(name, {}), "return_tensors": "pt"} for name in _MEDIA}
    return given | {"text_kwargs": {**given.get("text_kwargs", {}), "return_tensors": None}} | tensors


_MEDIA = ("audio_kwargs", "images_kwargs", "videos_kwargs")


def encode_image_for_rollout_engine(image: Any) -> str:
    """A PIL image as SGLang's `image_data` takes it: a data URL of an RGB PNG."""
    buffer = io.BytesIO()
    (image if image.mode == "RGB" else image.convert("RGB")).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
