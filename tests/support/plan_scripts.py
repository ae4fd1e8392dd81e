"""The scripts of examples/plans as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PLANS = Path(__file__).parents[2] / "examples" / "plans"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PLANS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
