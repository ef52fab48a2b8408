"""Chat templates: the same ids as transformers' for templates of many styles."""
# ruff: noqa: E501 (templates stand as models publish them)

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from outrider.errors import InvalidField
from outrider.identity import TokenizerFiles
from outrider.text import ChatTemplate, TextCodec

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if tools is not none %}TOOLS{% endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
LOOPS = """{%- set ns = namespace(last=none, count=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'system' %}{% continue %}{% endif -%}
    {%- set ns.count = ns.count + 1 -%}
    {%- if ns.count > 3 %}{% break %}{% endif -%}
    [{{ message | tojson }}|{{ dict(a=1, b='<&>') | tojson(indent=2) }}]
{%- endfor %}
  {% generation %}
  {{ messages[-1].content }}
  {% endgeneration %}
  {# a comment #}
{{ ns.count }} {{ documents is none }} {{ unk_token is defined }}
"""
DATED = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
STYLES = {
    "chatml": CHATML,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "loops": LOOPS,
    "dated": DATED,
}
CHATS = {
    "one": [{"role": "user", "content": '  the quick <b>brown</b> "fox" 你好 \n'}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<|im_end|> b\\n"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "é"},
        {"role": "user", "content": "last"},
    ],
    "system": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ],
}
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": {"content": "<|im_end|>", "__type": "AddedToken", "special": True},
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("style", STYLES)
def test_ids_equal_those_of_transformers(
    style: str,
    chat: str,
    byte_level: Tokenizer,
    make_files: Callable[..., TokenizerFiles],
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    files = make_files(byte_level, STYLES[style], config=CONFIG)
    for name, content in files.contents.items():
        (tmp_path / name).write_bytes(content)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    codec = TextCodec(TokenizerFiles.from_folder(tmp_path))
    if style == "gemma" and chat == "system":
        with pytest.raises(InvalidField, match="^chat: .*System role not supported"):
            codec.apply_chat_template(CHATS[chat])
        return
    expected = reference.apply_chat_template(
        CHATS[chat], add_generation_prompt=True, return_dict=False
    )
    assert codec.apply_chat_template(CHATS[chat]) == expected
    assert codec.encode(CHATS[chat][0]["content"]) == reference(CHATS[chat][0]["content"]).input_ids


def test_bos_is_not_added_twice(
    metaspace: Tokenizer, make_files: Callable[..., TokenizerFiles]
) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    codec = TextCodec(
        make_files(metaspace, "{{ bos_token }}{{ messages[0].content }}", config=config)
    )
    assert codec.apply_chat_template([{"role": "user", "content": "is"}]).count(1) == 1
    assert codec.encode("is")[0] == 1


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "chat.messages: no messages"),
        ([{"role": "", "content": "x"}], "chat.messages[0].role: empty"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "chat.messages[1].role: empty"),
        ([{"role": "assistant", "content": "x"}], "chat: the model's chat template refuses it"),
    ],
)
def test_bad_messages_are_named(messages: list[dict[str, str]], fault: str) -> None:
    template = ChatTemplate(LLAMA2, variables={"bos_token": "", "eos_token": ""})
    with pytest.raises(InvalidField, match="^" + re.escape(fault)):
        template.render(messages)


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}{{ ().__class__.__subclasses__() }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_whatever_a_template_does_wrong_is_a_fault_of_the_chat(text: str) -> None:
    with pytest.raises(InvalidField, match="^chat: "):
        ChatTemplate(text, variables={}).render([{"role": "user", "content": "x"}])


def test_a_text_that_is_no_template_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="chat template"):
        ChatTemplate("{% for %}", variables={})


def test_the_clock_is_the_callers() -> None:
    template = ChatTemplate(DATED, variables={}, now=lambda: datetime(2031, 5, 4))
    assert template.render([{"role": "user", "content": "x"}]) == "2031user:x"


def test_a_model_without_template_takes_no_chat(
    byte_level: Tokenizer, make_files: Callable[..., TokenizerFiles]
) -> None:
    codec = TextCodec(make_files(byte_level))
    assert not codec.has_chat_template
    with pytest.raises(InvalidField, match="no chat template"):
        codec.apply_chat_template([{"role": "user", "content": "x"}])
