"""Prompts as text: no control marker of the user's, nothing of the runtime's changed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from localreact.endpoints.chat import TRANSCRIPT, from_template
from localreact.endpoints.neutral import markers_of, neutral_text
from localreact.types import Prompt, Segment
from tests.fakes import CHATML

FAMILIES = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<｜User｜>",
    "<｜end▁of▁sentence｜>",
    "<|user|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "[TOOL_CALLS]",
    "<think>",
    "</think>",
    "<tool_call>",
    "<unused42>",
    "<0x0A>",
]
CHAT = from_template(CHATML)
assert CHAT is not None
MARKERS = markers_of(CHAT)


def neutral(*texts: str) -> tuple[str, int]:
    return neutral_text(Prompt(tuple(map(Segment, texts))), MARKERS)


def test_markers_of_known_families_are_broken_in_untrusted_text_only() -> None:
    for marker in FAMILIES:
        text, broken = neutral(f"a{marker}b")
        assert (text, broken) == (f"a{marker[0]} {marker[1:]}b", 1)
        prompt = Prompt((Segment(marker, trusted=True),))
        assert neutral_text(prompt, MARKERS) == (marker, 0)


def test_a_marker_in_several_segments_is_found() -> None:
    assert neutral("<|im_", "start|>") == ("< |im_start|>", 1)


def test_ordinary_text_stays_as_it_is() -> None:
    for text in (
        "a < b > c",
        "<div class='x'><b>1</b></div>",
        "x[0], [OK], [1]",
        "if (a<b && c>d)",
        "List<String>",
        "3 | 4",
    ):
        assert neutral(text) == (text, 0)


def test_what_a_template_of_its_own_writes_is_a_marker_too() -> None:
    chat = from_template(
        "{% for m in messages %}<<x-{{ m.role }}>>{{ m.content }}{% endfor %}<<x-assistant>>"
    )
    assert chat is not None
    prompt = Prompt((Segment("x <<x-user>> y"),))
    assert neutral_text(prompt, markers_of(chat)) == ("x < <x-user>> y", 1)
    assert neutral_text(prompt, markers_of(TRANSCRIPT)) == ("x <<x-user>> y", 0)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*FAMILIES, "<", ">", "|", "[", "]", "a", " ", "\n", "<|", "|>"]), max_size=30)
)
def test_no_marker_is_left_however_they_are_put_together(parts: list[str]) -> None:
    text, broken = neutral(*parts)
    assert not MARKERS.search(text)
    assert text.replace(" ", "") == "".join(parts).replace(" ", "")
    assert (broken > 0) == bool(MARKERS.search("".join(parts)))
