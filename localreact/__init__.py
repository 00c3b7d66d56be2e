"""localreact: ReAct agents out of models that can only complete text."""

from localreact._version import __version__
from localreact.agent import Agent
from localreact.checks import Check
from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import LocalReactError
from localreact.guards import Guards
from localreact.run import Run, Step
from localreact.tools import Call, Tool, Toolbox, tool
from localreact.types import Sampling, ToolExample

__all__ = [
    "Agent",
    "Call",
    "Check",
    "Guards",
    "LocalReactError",
    "Run",
    "Sampling",
    "ScriptedEndpoint",
    "Step",
    "Tool",
    "ToolExample",
    "Toolbox",
    "__version__",
    "tool",
]
