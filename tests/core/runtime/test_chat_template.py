"""Chat templates are programs out of a download: they see the chat, and nothing else, and they end."""

from __future__ import annotations

import time

import pytest

from core.errors import UserError
from core.runtime.tokenizer.template import Message, render

CHAT = (Message("user", "Hi <b>\n"), Message("assistant", "Yo"))
SAID = "<s>user:Hi <b>;assistant:Yo;"
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def write(template: str) -> str:
    return render(template, CHAT, NAMES)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] | trim }};{% endfor %}", SAID),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <b>\\n"}'),
        ("{{ {'é': [1, none, true]} | tojson }}", '{"é": [1, null, true]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%Y') }}", time.strftime("%Y")),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ 'a\nb' | indent(2) }}{{ 'x' ~ 1 ~ none }}", "a\n  bx1None"),
        ("{{ '**%s** {}'.format(3) }}{{ '**%s**' % 2 }}", "**%s** 3**2**"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[1].content) }}", "<Yo>"),
        ("{{ tools is none }}{{ nothing is defined }}{{ 'a,b'.split(',')[1] }}", "TrueFalseb"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
    ],
)  # fmt: skip
def test_what_templates_use(template: str, text: str) -> None:
    assert write(template) == text


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{{ [1] * 10000000000 }}",
    "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}",
    "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "{{ 10 ** 10000000 }}",
    "{{ 'x'.ljust(10000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w='1000000000') }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ([1] * 100000) | join('x' * 100000) }}",
    "{{ ('x' * 100000).join(['a'] * 100000) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
]


@pytest.mark.parametrize("template", ENDLESS)
def test_what_would_not_end_is_ended(template: str) -> None:
    start = time.monotonic()
    with pytest.raises(UserError, match="does not come to an end") as error:
        write(template)
    assert time.monotonic() - start < 10  # 2 s of work, and a busy machine
    assert "prompt" in error.value.hint


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ 'x'.encode() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'x' as y %}",
        "{% if",
        "{{ 'x' | center(9) }}",
        "{{ messages[0].nothing.at_all }}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_fails_or_is_not_allowed_is_one_sentence(template: str) -> None:
    with pytest.raises(UserError, match=r"^The chat template (can not be run|fails)") as error:
        write(template)
    assert "\n" not in error.value.message


def test_a_template_may_refuse() -> None:
    with pytest.raises(UserError, match=r"refuses this conversation: Roles must alternate\. Give"):
        write("{{ raise_exception('Roles must alternate.') }}")


def test_the_chat_is_not_a_template() -> None:
    assert (
        render("{{ messages[0].content }}", (Message("user", "{{ 7 * 7 }}{% endif %}"),), {})
        == "{{ 7 * 7 }}{% endif %}"
    )


def test_a_template_of_a_megabyte_is_none() -> None:
    with pytest.raises(UserError, match="too long"):
        write("x" * (1 << 20) + "y")


# Constructs that the templates of common models are made of.
CONSTRUCTS = [
    "{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}{{- rest | length }} {{ bos_token }}",
    "{%- for m in messages[::-1] -%}\n  {{ loop.index0 }}:{{ m['content'] | trim + '!' }}\n{%- endfor %}",
    "{% for m in messages %}{{ (m.role == 'user') != (loop.index0 % 2 == 0) }}{% endfor %}",
    (
        "{% set ns = namespace(last=-1) %}{% for m in messages if m.role == 'user' %}{% set ns.last = loop.index %}"
        "{% endfor %}{{ ns.last }}"
    ),
    "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{{ m.content is string }}{% endfor %}",
    "{% for m in messages | rejectattr('role', 'equalto', 'system') | list %}{{ m.role ~ loop.last }}{% endfor %}\n",
    (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n        {{- m.content.upper() -}}\n    {% endif %}\n"
        "  {# nothing #}\n{{ loop.previtem.role if loop.previtem else '-' }}\n{% endfor %}\n"
    ),
    "{{ messages | tojson }}{{ messages[0] | items | list }}{{ {'b': 1, 'a': '<é>'} | tojson(indent=4) }}",
    "{%- if nothing is defined and nothing is false %}x{%- elif add_generation_prompt %}{{- 'go\n' }}{%- endif %}\n\n",
    (
        "{% macro turn(m, end='.') %}<{{ m.role }}>{{ caller() if caller else m.content }}{{ end }}{% endmacro %}"
        "{% call turn(messages[0]) %}inner{% endcall %}{{ turn(messages[-1], end=eos_token) }}"
    ),
]
CHATS = [
    [("user", " Hi 🙂 \n")],
    [("system", "Be short."), ("user", "a"), ("assistant", "<think>x</think>\n\nb"), ("user", "<b>&\"'")],
]


@pytest.mark.interop
@pytest.mark.parametrize("template", CONSTRUCTS)
@pytest.mark.parametrize("chat", CHATS)
def test_templates_say_what_transformers_makes_of_them(template: str, chat: list[tuple[str, str]]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    turns = [{"role": role, "content": content} for role, content in chat]
    (expected,), _ = render_jinja_template([turns], chat_template=template, add_generation_prompt=True, **NAMES)
    assert render(template, [Message(*turn) for turn in chat], NAMES) == expected
