from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localreact.engines.free import cut_at_stop
from localreact.protocols.reasoning import split
from localreact.serve.plain import PlainReader, StopFilter
from localreact.types import Reasoning

pieces = st.lists(
    st.sampled_from(["<", "think>", "</", "<think>", "</think>", "a", "b", " ", "\n", "ab"]), max_size=12
)


@given(pieces, st.lists(st.sampled_from(["ab", "a b", "<", "bb"]), max_size=3))
def test_a_filter_lets_through_exactly_what_stands_before_the_first_stop(
    texts: list[str], stops: list[str]
) -> None:
    stopping = StopFilter(tuple(stops))
    shown = ""
    for text in texts:
        shown += stopping.feed(text)
        assert cut_at_stop("".join(texts), tuple(stops)).startswith(shown)
    shown += stopping.finish()
    assert shown == cut_at_stop("".join(texts), tuple(stops))
    assert (stopping.stopped_at is not None) == (shown != "".join(texts))


@given(pieces)
def test_reasoning_and_content_add_up_to_those_of_the_whole(texts: list[str]) -> None:
    reader = PlainReader(Reasoning())
    reasoning, content = "", ""
    for more in [*map(reader.feed, texts), reader.finish()]:
        reasoning, content = reasoning + more[0], content + more[1]
    assert (reasoning, content) == split("".join(texts), Reasoning())


def test_content_is_shown_as_soon_as_it_cannot_be_reasoning() -> None:
    reader = PlainReader(Reasoning())
    assert [reader.feed(each) for each in ("<", "b>", "c")] == [("", ""), ("", "<b>"), ("", "c")]


def test_without_tags_everything_is_content() -> None:
    assert PlainReader(None).feed("<think>") == ("", "<think>")
