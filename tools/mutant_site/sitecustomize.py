"""Compiles a mutant instead of one file of weft; tools/mutants puts this on PYTHONPATH.

WEFT_MUTANT_OF is the file's path, WEFT_MUTANT the path of what to compile instead; the file
`reached` beside it appears when the faulty statement runs.
WEFT_MUTANT_CORE is a module to load as weft._core.
"""

import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

_file, _mutant = os.environ.get("WEFT_MUTANT_OF", ""), os.environ.get("WEFT_MUTANT", "")
_get_code = SourceFileLoader.get_code


def _get_code_of_mutant(loader: SourceFileLoader, name: str) -> CodeType | None:
    path = loader.get_filename(name)
    if path != _file:
        return _get_code(loader, name)
    return compile(Path(_mutant).read_bytes(), path, "exec", dont_inherit=True)


def note_reached() -> None:
    """Mutants call this; whoever may not write there has not reached it for us."""
    with suppress(OSError):
        Path(_mutant).with_name("reached").touch()


if _mutant:
    SourceFileLoader.get_code = _get_code_of_mutant  # type: ignore[method-assign]


class _FindCore:
    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        return spec_from_file_location(name, _core) if name == "weft._core" else None


if _core := os.environ.get("WEFT_MUTANT_CORE", ""):
    sys.meta_path.insert(0, _FindCore())
