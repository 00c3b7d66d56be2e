"""Tools: `@tool`, the toolbox that executes calls, and the built-in tools."""

from localreact.tools.decorator import Tool, tool
from localreact.tools.execution import Call, current_call
from localreact.tools.toolbox import Toolbox

__all__ = ["Call", "Tool", "Toolbox", "current_call", "tool"]
