"""Makes the files of a host from tests/data/host/NAME.tree."""

from pathlib import Path

TREES = Path(__file__).parents[1] / "data" / "host"


def plant(name: str, root: Path) -> Path:
    for line in (TREES / f"{name}.tree").read_text().splitlines():
        if not line.startswith("#"):
            _plant_line(line, root)
    return root


def _plant_line(line: str, root: Path) -> None:
    if " -> " in line:
        path, _, target = line.partition(" -> ")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    elif line.endswith("/"):
        (root / line).mkdir(parents=True)
    else:
        path, _, content = _split(line)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content.replace("\\n", "\n") + "\n")


def _split(line: str) -> tuple[str, str, str]:
    """PCI addresses have colons, but no space after them."""
    path, colon, content = line.partition(": ")
    return (path, colon, content) if colon else (line.rstrip(":"), "", "")
