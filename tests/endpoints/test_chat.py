from __future__ import annotations

import pytest

from localreact.endpoints.chat import ChatFormat, from_template
from tests.conftest import CHATML

GEMMA_LIKE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def test_delimiters_come_from_the_template() -> None:
    assert from_template(CHATML) == ChatFormat(
        name="chat template",
        begin="<|im_start|>system\n",
        system_to_user="<|im_end|>\n<|im_start|>user\n",
        user_to_model="<|im_end|>\n<|im_start|>assistant\n",
        model_to_user="<|im_end|>\n<|im_start|>user\n",
    )


def test_a_template_without_a_system_role_gets_it_in_the_first_user_message() -> None:
    chat = from_template(GEMMA_LIKE, bos="<bos>")
    assert chat is not None
    assert chat.begin == "<bos><start_of_turn>user\n"
    assert chat.system_to_user == "\n\n"
    assert chat.user_to_model == "<end_of_turn>\n<start_of_turn>model\n"
    assert chat.model_to_user == "<end_of_turn>\n<start_of_turn>user\n"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] }}",  # loses messages
        "{% for m in messages %}",  # doesn't compile
        "{{ undefined_thing.attribute }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # the sandbox refuses
        "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}",  # says everything twice
        "",
    ],
)
def test_a_template_that_cannot_be_used_gives_none(template: str) -> None:
    assert from_template(template) is None
