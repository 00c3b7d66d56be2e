"""Chat formats: the text between the parts of a conversation, derived once from a chat template.

Past turns are never rendered again: templates strip, trim and merge, and each such change would
make the model evaluate everything anew. Instead the template is rendered once over sentinels, and
what stands between them are the delimiters.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


@dataclass(frozen=True)
class ChatFormat:
    """Conversations go system, user, model, user, model, …; every delimiter is trusted text.

    Where `user_to_model` opens the model's reasoning, `closing` closes it for turns that the model didn't
    write itself.
    """

    name: str
    begin: str
    system_to_user: str
    user_to_model: str
    model_to_user: str
    closing: str = ""


TRANSCRIPT = ChatFormat(
    name="plain transcript",
    begin="",
    system_to_user="\n\nUser: ",
    user_to_model="\n\nAssistant: ",
    model_to_user="\n\nUser: ",
)

_SYSTEM, _USER, _MODEL, _AGAIN = "\x02S\x03", "\x02U\x03", "\x02M\x03", "\x02A\x03"


def from_template(template: str, bos: str = "", eos: str = "") -> ChatFormat | None:
    """The format of a Jinja chat template; None where it can't be rendered or loses a message.

    Templates come with model files and aren't trusted: they run in Jinja's sandbox.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        compiled = environment.from_string(template)
    except Exception:  # a template is a program by somebody else: compiling it fails in many ways
        return None
    conversation = [_message("user", _USER), _message("assistant", _MODEL), _message("user", _AGAIN)]

    def render(messages: list[dict[str, str]]) -> str:
        try:
            return compiled.render(
                messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos
            )
        except Exception:  # templates are programs: they raise whatever they like
            return ""

    with_system = _between(
        render([_message("system", _SYSTEM), *conversation]), (_SYSTEM, _USER, _MODEL, _AGAIN)
    )
    if with_system:
        begin, system_to_user, _, model_to_user, user_to_model = with_system
        return ChatFormat("chat template", begin, system_to_user, user_to_model, model_to_user)
    without = _between(render(conversation), (_USER, _MODEL, _AGAIN))
    if without:  # no system role: its text opens the first user message
        begin, _, model_to_user, user_to_model = without
        return ChatFormat("chat template without a system role", begin, "\n\n", user_to_model, model_to_user)
    return None


def _between(text: str, sentinels: tuple[str, ...]) -> list[str] | None:
    """What stands before, between and after the sentinels; None unless each stands once, in order."""
    parts = []
    for sentinel in sentinels:
        part, found, text = text.partition(sentinel)
        if not found:
            return None
        parts.append(part)
    parts.append(text)
    return parts if not any(s in part for s in sentinels for part in parts) else None


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _raise(message: str) -> Any:
    raise TemplateError(message)
