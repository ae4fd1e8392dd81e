"""Pages of the site that are not files of docs/: a hook of mkdocs.

README.md becomes the home page; ARCHITECTURE.md, CHANGELOG.md and CONTRIBUTING.md join it; the
reference of commands comes from the parser, that of Python modules from their docstrings. Links
between docs/ and the root of the repository are turned into links between pages; a link to a
source file becomes its path. Entry points: `on_files` and `on_page_markdown`, called by mkdocs.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from weft.cli import build_parser

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"README.md": "index.md"} | {
    name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
}
MODULES = ("measure", "simulate", "fabric", "records", "plot", "model", "studies", "tune")
MODULES += ("sensitivity", "control", "switches", "errors", "units")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {page: (ROOT / name).read_text("utf-8") for name, page in ROOT_PAGES.items()}
    pages["reference/commands.md"] = "\n".join(describe_commands())
    pages["reference/python.md"] = "\n".join(list_modules())
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Turn the repository's links into the site's."""
    site_path = page.file.src_uri
    source = next((name for name, target in ROOT_PAGES.items() if target == site_path), None)
    folder = (ROOT / source if source else ROOT / "docs" / site_path).parent

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups(default="")
        path = Path(os.path.normpath(folder / target))
        if not path.is_relative_to(ROOT):
            return match.group()
        page_path = find_page(path.relative_to(ROOT).as_posix(), files)
        if page_path is None:
            return f"{text} (`{path.relative_to(ROOT)}`)"
        relative = os.path.relpath(page_path, PurePosixPath(site_path).parent)
        return f"{image}[{text}]({relative}{anchor})"

    return _LINK.sub(link, markdown)


def find_page(path: str, files: Files) -> str | None:
    """The site's path of a file of the repository, if the site has it."""
    page = ROOT_PAGES.get(path, path.removeprefix("docs/"))
    return page if files.get_file_from_path(page) else None


def describe_commands() -> Iterator[str]:
    os.environ["COLUMNS"] = "100"  # argparse wraps its help to this
    yield "# Commands\n"
    yield "What `--help` prints, for every command.\n"
    for name, parser in walk(build_parser()):
        yield f"## `{name}`\n"
        yield f"```text\n{parser.format_help().rstrip()}\n```\n"


def walk(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its commands, by their whole names."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from walk(child)


def list_modules() -> Iterator[str]:
    yield "# Python modules\n"
    yield "The public names of each package, from the code. [By example](../api.md).\n"
    for name in MODULES:
        yield f"::: weft.{name}\n"
