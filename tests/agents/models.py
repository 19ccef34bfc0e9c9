"""Tokenizers for tests of prompts: templates of the shapes that models have, over tokens that drift.

The tokenizer merges: the ids that an engine makes are mostly not those that their text is encoded to.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.docs.pages import ROOT

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<|User|>", "<|Assistant|>", "<|end_of_sentence|>"),
    *("<|header|>", "<|/header|>", "<|eot|>"),
    *("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"),
)
LEARNED = [
    'the tool says that the answer is {"name": "look_up", "arguments": {"word": "slime"}} and it was 42\n\n'
] * 20

CHATML = (ROOT / "slime_events" / "app" / "demo" / "base" / "chat_template.jinja").read_text()
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" + CHATML
)
_TOOLS = (
    "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n"
    "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>"
)
_FORM = (
    "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": '
    "<args-json-object>}\\n</tool_call>"
)
_TOOL_RESULT = """
  {%- elif m.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
    {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}"""
_CALLS = """
    {%- for call in m.tool_calls or [] %}
      {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{% endif %}
      {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
      {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}"""
_HEAD = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\\n\\n' }}{% endif %}{{- \""
    + _TOOLS
    + "\" }}{% for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}{{- \""
    + _FORM
    + "<|im_end|>\\n\" }}{% elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}"
)
# As Qwen2.5's: calls as JSON between tags, results in a user's turn.
QWEN = (
    _HEAD
    + """
{%- for m in messages %}
  {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
  {%- elif m.role == 'assistant' %}
    {%- set content = m.content %}
    {{- '<|im_start|>assistant\\n' + content }}"""
    + _CALLS
    + _TOOL_RESULT
    + "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# As Qwen3's: an answer is shown with its thinking after the last question, without it before.
QWEN3 = (
    _HEAD
    + """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
  {%- elif m.role == 'assistant' %}
    {%- set content, reasoning = m.content, m.reasoning_content or '' %}
    {%- if not reasoning and '</think>' in content %}
      {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
      {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- content }}"""
    + _CALLS
    + _TOOL_RESULT
    + "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    + "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    + "{%- endif %}"
)
# As DeepSeek-R1's: opens the thinking, and shows no answer's thinking again.
DISTILL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|end_of_sentence|>' }}"
    "{% else %}{{ '<|User|>' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
# As Llama 3's: trims the text.
LLAMA3 = (
    "{% for m in messages %}{{ '<|header|>' + m.role + '<|/header|>\n\n' + m.content | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"
)
# As GLM's: an answer has no end but the next message's beginning.
GLM = (
    "{% for m in messages %}{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>\n' + m.content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


class Model(NamedTuple):
    """end: the token that ends an answer. stable: history is shown as it was written, so a path's text is the
    chat's.
    """

    name: str
    template: str
    end: str
    stable: bool = True


MODELS = (
    Model("chatml", CHATML, "<|im_end|>"),
    Model("default-system", DEFAULT_SYSTEM, "<|im_end|>"),
    Model("qwen", QWEN, "<|im_end|>"),
    Model("qwen3", QWEN3, "<|im_end|>", stable=False),
    Model("distill", DISTILL, "<|end_of_sentence|>", stable=False),
    Model("llama3", LLAMA3, "<|eot|>"),
    Model("glm", GLM, "<|user|>"),
)


@cache
def _learned() -> str:
    tokenizer_ = Tokenizer(models.BPE())
    tokenizer_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer_.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer_.train_from_iterator(LEARNED, trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet))
    tokenizer_.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return str(tokenizer_.to_str())


@cache
def tokenizer(model: Model, name: str = "") -> Any:
    """name: what its folder is called."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_learned()), eos_token=model.end, pad_token="<|endoftext|>"
    )
    wrapped.chat_template, wrapped.name_or_path = model.template, name
    return wrapped
