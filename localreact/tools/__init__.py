"""Tools: `@tool`, the toolbox that executes calls, and the built-in tools."""

from localreact.tools.decorator import Tool, tool
from localreact.tools.toolbox import Toolbox

__all__ = ["Tool", "Toolbox", "tool"]
