"""Whether a text belongs to a grammar: for looking at grammars without a model.

Follows all derivations at once, character by character, as sets of stacks of what is still to come;
equal stacks are one. The rules must not be left-recursive.
"""

from __future__ import annotations

from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text

_END = 0  # the empty stack


class Recogniser:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._cells: list[tuple[Node, int, int]] = [(Text(""), 0, 0)]  # node, how far in it, what follows
        self._known: dict[tuple[int, int, int], int] = {}
        self._opened: dict[int, frozenset[int]] = {}
        self._start = self._open(self._push(rules.start, 0, _END))

    def accepts(self, text: str) -> bool:
        stacks = self._start
        for character in text:
            stacks = self._after(stacks, character)
            if not stacks:
                return False
        return _END in stacks

    def _after(self, stacks: frozenset[int], character: str) -> frozenset[int]:
        code = ord(character)
        found: set[int] = set()
        for stack in stacks - {_END}:
            node, done, rest = self._cells[stack]
            if isinstance(node, Text):
                if node.text[done] == character:
                    found |= self._open(self._push(node, done + 1, rest))
            elif isinstance(node, Chars) and any(low <= code <= high for low, high in node.ranges):
                found |= self._open(rest)
        return frozenset(found)

    def _push(self, node: Node, done: int, rest: int) -> int:
        key = (id(node), done, rest)
        if key not in self._known:
            self._known[key] = len(self._cells)
            self._cells.append((node, done, rest))
        return self._known[key]

    def _open(self, stack: int) -> frozenset[int]:
        """The stacks that this one may become before the next character, with characters on top."""
        if stack in self._opened:
            return self._opened[stack]
        found, todo, seen = set(), [stack], set()
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            if at == _END:
                found.add(at)
                continue
            node, done, rest = self._cells[at]
            match node:
                case Text(text):
                    if done < len(text):
                        found.add(at)
                    else:
                        todo.append(rest)
                case Chars():
                    found.add(at)
                case Seq(parts):
                    after = rest if done + 1 == len(parts) else self._push(node, done + 1, rest)
                    todo.append(self._push(parts[done], 0, after))
                case Alt(options):
                    todo += [self._push(option, 0, rest) for option in options]
                case Repeat(part, least, most):
                    if done >= least:
                        todo.append(rest)
                    if most is None or done < most:
                        counted = done + 1 if most is not None else min(done + 1, least)
                        todo.append(self._push(part, 0, self._push(node, counted, rest)))
                case Ref(name):
                    todo.append(self._push(self._rules.rules[name], 0, rest))
        self._opened[stack] = frozenset(found)
        return self._opened[stack]
