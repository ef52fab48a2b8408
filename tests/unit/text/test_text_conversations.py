"""Tools, variables and continued messages read as transformers' apply_chat_template reads them."""
# ruff: noqa: E501 (templates stand as models publish them)

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from outrider.checkpoints import prepare
from outrider.errors import InvalidField
from outrider.identity import TokenizerFiles
from outrider.text import TextCodec

# In the manner of Qwen: tools as JSON lines, calls as JSON in tags, answers of tools as a user's.
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are helpful.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
# In the manner of Llama 3.1: every message trimmed, tools in the first user message, one call at most.
LLAMA = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the following functions:\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# In the manner of Mistral: ids of calls checked, tools before the last user message.
MISTRAL = """{%- set user_messages = messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- elif message["role"] != "system" %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""
# In the manner of models that think: thoughts are kept behind the last question only.
THINKING = """{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set thought = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if loop.index0 > ns.last and thought %}
            {{- '<assistant><think>' + thought.strip('\\n') + '</think>' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<assistant>' + content }}
        {%- endif %}
    {%- else %}
        {{- '<' + message.role + (':' + message.name if message.name else '') + '>' + content }}
    {%- endif %}
    {{- '</s>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}
"""
STYLES = {"qwen": QWEN, "llama": LLAMA, "mistral": MISTRAL, "thinking": THINKING}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Says "how" it is <there>, e.g. für Köln.',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
]
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}},
}
ASKED = [
    {"role": "system", "content": " Be brief. \n"},
    {"role": "user", "content": "Is it raining\tin Köln? 你好", "name": "ann"},
]
CALLED = [
    *ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"rain": true}', "tool_call_id": "call00001", "name": "weather"},
]
CHATS: Mapping[str, list[dict[str, Any]]] = {
    "asked": ASKED,
    "called": CALLED,
    "no content": [*ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
    "two calls": [
        *ASKED,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CALL]},
    ],
    "an id too short": [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": "1"}]},
    ],
    "answered": [
        *CALLED,
        {"role": "assistant", "content": " Yes. ", "reasoning_content": "\nrain: true\n"},
        {"role": "user", "content": "Sure?"},
    ],
    "thought": [*ASKED, {"role": "assistant", "content": "Yes.", "reasoning": "It rains."}],
    "a stranger": [{"role": "critic", "content": "Hm."}],
}
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
}


class Sides:
    """The same template here and in transformers."""

    def __init__(self, folder: Path) -> None:
        transformers = pytest.importorskip("transformers")
        self.reference = transformers.AutoTokenizer.from_pretrained(folder)
        self.codec = TextCodec(TokenizerFiles.from_folder(folder))

    def compare(
        self,
        chat: list[dict[str, Any]],
        *,
        tools: list[Any] | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str | None:
        """Return the text that both make of a conversation; None if both refuse it."""
        try:
            expected = self.reference.apply_chat_template(
                chat,
                tools=tools,
                tokenize=False,
                add_generation_prompt=not continue_final_message,
                continue_final_message=continue_final_message,
                **variables,
            )
        except Exception:
            with pytest.raises(InvalidField, match="^chat"):
                self.codec.render_chat(
                    chat,
                    tools=tools,
                    variables=variables,
                    continue_final_message=continue_final_message,
                )
            return None
        given = {
            "tools": tools,
            "variables": variables,
            "continue_final_message": continue_final_message,
        }
        got = self.codec.render_chat(chat, **given)
        assert got == expected
        assert self.codec.apply_chat_template(chat, **given) == self.reference.encode(
            expected, add_special_tokens=False
        )
        return got


@pytest.fixture(scope="module")
def sides(
    byte_level: Tokenizer,
    make_files: Callable[..., TokenizerFiles],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Sides]:
    made: dict[str, Sides] = {}

    def of(template: str) -> Sides:
        if template not in made:
            folder = tmp_path_factory.mktemp("template")
            for name, content in make_files(byte_level, template, config=CONFIG).contents.items():
                (folder / name).write_bytes(content)
            made[template] = Sides(folder)
        return made[template]

    return of


@pytest.mark.parametrize("has_tools", [False, True], ids=["no tools", "tools"])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("style", ["qwen", "llama", "mistral"])
def test_tools_and_calls_read_as_in_transformers(
    style: str, chat: str, has_tools: bool, sides: Callable[[str], Sides]
) -> None:
    text = sides(STYLES[style]).compare(CHATS[chat], tools=TOOLS if has_tools else None)
    refused = {("llama", "two calls"), ("mistral", "an id too short"), ("mistral", "a stranger")}
    assert (text is None) == ((style, chat) in refused)
    if text is not None:
        assert ("Says" in text) == has_tools
        assert ("call00001" in text) == (style == "mistral" and "call" in str(CHATS[chat]))


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_thoughts_and_variables_read_as_in_transformers(
    chat: str, variables: dict[str, Any], sides: Callable[[str], Sides]
) -> None:
    text = sides(THINKING).compare(CHATS[chat], **variables)
    assert text is not None
    assert text.endswith("<think></think>") == (variables == {"enable_thinking": False})
    assert ("<think>It rains.</think>Yes." in text) == (chat == "thought")
    assert "rain: true" not in text, "thoughts before the last question are forgotten"


def test_variables_go_before_those_of_the_model(sides: Callable[[str], Sides]) -> None:
    text = sides(LLAMA).compare(ASKED, date_string="1 Jan 2031", bos_token="<b>")
    assert text is not None
    assert text.startswith("<b>")
    assert "1 Jan 2031" in text
    ended = sides(QWEN).compare(ASKED)
    variables = {"add_generation_prompt": False}
    assert sides(QWEN).codec.render_chat(
        ASKED, variables=variables
    ) + "<|im_start|>assistant\n" == (ended)


FINAL = {
    "plain": "It is",
    "spaces around": "  It is  ",
    "a line end": "It is\n",
    "nothing": "",
    "said before": "Is it raining\tin Köln? 你好",
    "parts": [{"type": "text", "text": "It "}, {"type": "text", "text": "is"}, {"type": "image"}],
    "no text in parts": [{"type": "image"}],
}


@pytest.mark.parametrize("final", FINAL)
@pytest.mark.parametrize("style", STYLES)
def test_a_continued_message_ends_where_transformers_ends_it(
    style: str, final: str, sides: Callable[[str], Sides]
) -> None:
    chat = [*ASKED, {"role": "assistant", "content": FINAL[final]}]
    text = sides(STYLES[style]).compare(chat, continue_final_message=True)
    if final == "plain":
        assert text is not None
        assert text.endswith("It is")
    if final == "no text in parts":
        assert text is None


@pytest.mark.parametrize(
    ("chat", "given", "fault"),
    [
        (ASKED, {}, "the last message is of 'user', not of 'assistant'"),
        (CALLED, {}, "the last message is of 'tool', not of 'assistant'"),
        ([*ASKED, {"role": "assistant", "content": None}], {}, "has no text to continue"),
        ([*ASKED, {"role": "assistant", "content": 5}], {}, "has no text to continue"),
        (
            [*ASKED, {"role": "assistant", "content": "x"}],
            {"variables": {"add_generation_prompt": True}},
            "excludes add_generation_prompt",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(
    chat: list[dict[str, Any]], given: dict[str, Any], fault: str, sides: Callable[[str], Sides]
) -> None:
    with pytest.raises(InvalidField, match=fault) as refused:
        sides(QWEN).codec.render_chat(chat, continue_final_message=True, **given)
    assert refused.value.field == "chat.continue_final_message"


@pytest.mark.parametrize("change", ["[:3]", " | upper", "[1:]"])
def test_a_template_that_changes_the_last_message_cannot_continue_it(
    change: str, sides: Callable[[str], Sides]
) -> None:
    chat = [*ASKED, {"role": "assistant", "content": "It is"}]
    template = f"{{% for message in messages %}}{{{{ message.content{change} }}}}{{% endfor %}}"
    assert sides(template).compare(chat, continue_final_message=True) is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tools": TOOLS}, "chat.tools_json"),
        ({"variables": {"enable_thinking": True}}, "chat.template_kwargs_json.enable_thinking"),
        # A word of the template's text, or one of its fields, is no variable.
        ({"variables": {"a": 1}}, "chat.template_kwargs_json.a"),
        ({"variables": {"role": 1}}, "chat.template_kwargs_json.role"),
        ({"variables": {"messages": []}}, "chat.template_kwargs_json.messages"),
        ({"variables": {"tools": []}}, "chat.template_kwargs_json.tools"),
    ],
)
def test_what_the_template_does_not_read_is_refused_by_name(
    given: dict[str, Any], field: str
) -> None:
    codec = TextCodec(TokenizerFiles.from_folder(prepare().target))
    with pytest.raises(InvalidField) as refused:
        codec.render_chat(ASKED, **given)
    assert refused.value.field == field


@pytest.mark.parametrize("chat", ["asked", "answered"])
@pytest.mark.parametrize("final", [None, "plain", "spaces around", "nothing"])
def test_the_demo_target_s_own_template(chat: str, final: str | None) -> None:
    messages = [{"role": m["role"], "content": m["content"]} for m in CHATS[chat]]
    if final is not None:
        messages.append({"role": "assistant", "content": FINAL[final]})
    text = Sides(prepare().target).compare(messages, continue_final_message=final is not None)
    assert text is not None
    assert text.endswith("<|im_start|>assistant\n" + str(FINAL.get(final or "", "")))
