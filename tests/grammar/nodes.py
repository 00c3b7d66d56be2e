"""Small random rules over a few characters, and texts that have a chance of fitting them."""

from __future__ import annotations

from hypothesis import strategies as st

from localreact.grammar.characters import STRING_CHARACTER
from localreact.grammar.rules import Alt, Chars, Node, Repeat, Seq, Text

_LEAVES: st.SearchStrategy[Node] = st.one_of(
    st.sampled_from(["", "a", "b", "ab", '"', '"a": ', "false", "\\n", "观"]).map(Text),
    st.sampled_from([((97, 98),), ((97, 97), (0x4E00, 0x9FFF)), ((34, 34),)]).map(Chars),
    st.just(STRING_CHARACTER),
)


def _nested(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=1, max_size=3).map(tuple)
    bounds = st.sampled_from([(0, 1), (0, None), (1, 3), (2, 2), (1, None)])
    return st.one_of(
        several.map(Seq),
        several.map(Alt),
        st.builds(lambda part, bound: Repeat(part, *bound), inner, bounds),
        st.builds(
            lambda part, bound: Seq((Text('"'), Repeat(part, *bound), Text('"'))),
            st.just(STRING_CHARACTER),
            st.sampled_from([(0, None), (0, 3), (2, 40)]),
        ),
    )


NODES: st.SearchStrategy[Node] = st.recursive(_LEAVES, _nested, max_leaves=6)
TEXTS = st.lists(
    st.sampled_from(["a", "b", "ab", '"', '"a": ', "false", "\\n", "\\", "观", "n"]), max_size=7
).map("".join)
