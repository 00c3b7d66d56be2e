"""`localreact serve`: an endpoint behind the APIs that everyone speaks, every tool call held by a grammar.

A dialect (`chat.py` and its neighbours) turns a wire request into an `Ask` and the `Part`s of a reply into
its own wire form. What lies between is one `Desk`. Needs the extra `serve`.
"""
