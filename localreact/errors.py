"""The exception tree. Every message says what is wrong and where; `hint` says what to do next.

LocalReactError
├── UsageError            wrong arguments to the command or the API
│   └── ToolDefinitionError   a tool that can't be offered to a model
├── MissingPartError      an extra, a model file or a package that isn't installed
├── ModelError            a model file that can't be loaded
├── GrammarError          a turn that can't be enforced; nothing runs unconstrained instead
├── ProtocolError         a text that is no turn (free endpoints only)
├── AnswerError           an answer that isn't of the type asked for
├── ContextOverflowError  a prompt that doesn't fit the context window
├── EndpointError         an endpoint that failed while completing
│   └── ServerError           a server that answered, but no
└── TraceError            a trace that can't be written or read
"""

from __future__ import annotations


class LocalReactError(Exception):
    """Base of all errors that localreact raises on purpose."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(LocalReactError):
    """Wrong arguments to the command or the API."""


class ToolDefinitionError(UsageError):
    """A tool that can't be offered to a model: no type hint, two of one name, a broken schema."""


class MissingPartError(LocalReactError):
    """An extra, a model file or a package that isn't installed."""


class ModelError(LocalReactError):
    """A model file that can't be loaded."""


class GrammarError(LocalReactError):
    """A turn that can't be enforced. Nothing runs unconstrained instead."""


class ProtocolError(LocalReactError):
    """A text that is no turn of its protocol. Possible only where no grammar is enforced."""


class AnswerError(LocalReactError):
    """An answer that isn't of the type asked for: it broke a rule that no grammar can hold."""


class ContextOverflowError(LocalReactError):
    """A prompt that doesn't fit the context window."""


class EndpointError(LocalReactError):
    """An endpoint that failed while completing."""


class ServerError(EndpointError):
    """A server that answered, but no: `status` is HTTP's, `retry_after` what it asked for."""

    def __init__(self, message: str, hint: str = "", status: int = 500, retry_after: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.retry_after = retry_after


class TraceError(LocalReactError):
    """A trace that can't be written or read."""
