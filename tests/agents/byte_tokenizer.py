"""A tokenizer of bytes: every character that is not ASCII is split over tokens."""

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from serve_apps.rollouts.agents.detokenizer import BYTES

END = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and three special ones."""
    tokenizer = Tokenizer(BPE(vocab=dict(BYTES), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    byte_level = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False)
    byte_level.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|eom|>"]})
    byte_level.chat_template = TEMPLATE
    return byte_level
