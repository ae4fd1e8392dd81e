"""`weft completion SHELL` and `weft man`: scripts and manual pages, from the parser itself.

Both walk the declarations that help shows, so that they cannot disagree with it. A completion
script is static: a key press starts no Python. Entry points: `run_completion`, `run_man`.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from weft import __version__
from weft.cli.parser import COMMANDS, HelpFormatter, Parser, build_parser
from weft.errors import InputError

FILES = re.compile(r"FILE|\.toml|\.jsonl|RECORDS")  # metavars of arguments that are files
STATUS = (
    ("0", "Done."),
    ("1", "Done, but a check failed: see the command's description."),
    ("2", "Could not run; one line says where, why, and what to do."),
    ("128 + N", "Interrupted by signal N; what was measured is kept."),
)

ZSH_STATES = ("'1: :->name'", "'*:: :->rest'")  # a subcommand's name, and what follows it
_FORMATTER = HelpFormatter("weft")


def list_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Options and arguments of a parser that help shows, apart from its subcommands."""
    return [
        action
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS
    ]


def list_subcommands(parser: argparse.ArgumentParser) -> dict[str, tuple[Parser, str]]:
    """Subcommands by name, each with its parser and its help line."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {
        choice.dest: (group.choices[choice.dest], choice.help or "")
        for group in groups
        for choice in group._choices_actions
    }


def walk_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, then those of its subcommands."""
    yield parser
    for inner, _ in list_subcommands(parser).values():
        yield from walk_parsers(inner)


def expand_help(action: argparse.Action) -> str:
    return _FORMATTER._expand_help(action) if action.help else ""


def is_file(action: argparse.Action) -> bool:
    return bool(FILES.search(str(action.metavar)))


# ---- Completion -------------------------------------------------------------------------------


def run_completion(args: argparse.Namespace) -> int:
    print(SHELLS[args.shell](build_parser()))
    return 0


def write_bash(top: Parser) -> str:
    cases, choices = [], []
    for parser in walk_parsers(top):
        options = [option for action in list_actions(parser) for option in action.option_strings]
        names = list(list_subcommands(parser))
        cases.append(
            f'    "{parser.prog}") names="{" ".join(names)}"; options="{" ".join(options)}" ;;'
        )
        choices += [
            f'    "{parser.prog} {option}") names="{_join(action)}" ;;'
            for action in list_actions(parser)
            if _list_choices(action)
            for option in action.option_strings or [parser.prog.split()[-1]]
        ]
    return "\n".join(
        [
            "# bash completion of weft: source <(weft completion bash)",
            "_weft_words() {",
            '  case "$1" in',
            *cases,
            "  esac",
            "}",
            "_weft() {",
            "  local word=${COMP_WORDS[COMP_CWORD]} path=weft names= options= given",
            "  _weft_words weft",
            '  for given in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '    if [[ " $names " == *" $given "* ]]; then',
            '      path="$path $given"; _weft_words "$path"',
            "    fi",
            "  done",
            "  COMPREPLY=()",
            "  [[ $word == -* ]] && names=$options",
            '  case "$path ${COMP_WORDS[COMP_CWORD-1]}" in',
            *choices,
            "  esac",
            '  [[ -n $names ]] && COMPREPLY=($(compgen -W "$names" -- "$word"))',
            "}",
            "complete -o default -F _weft weft",
        ]
    )


def _list_choices(action: argparse.Action) -> list[str]:
    """What an option takes: its choices, or the words of a metavar such as `spin|block`."""
    if action.choices:
        return [str(choice) for choice in action.choices]
    words = action.metavar.split("|") if isinstance(action.metavar, str) else []
    return [word for word in words if word.islower()] if len(words) > 1 else []


def _join(action: argparse.Action) -> str:
    return " ".join(_list_choices(action))


def write_zsh(top: Parser) -> str:
    functions = [_write_zsh_function(parser) for parser in walk_parsers(top)]
    return "\n".join(
        [
            "#compdef weft",
            "# zsh completion of weft: weft completion zsh > a folder of $fpath/_weft",
            *functions,
            'if [[ $funcstack[1] == _weft ]]; then _weft "$@"; else compdef _weft weft; fi',
        ]
    )


def _write_zsh_function(parser: argparse.ArgumentParser) -> str:
    name = _name_function(parser)
    specs = [spec for action in list_actions(parser) for spec in _write_zsh_specs(action)]
    subcommands = list_subcommands(parser)
    if not subcommands:
        return f"{name}() {{\n  _arguments -s \\\n    {_continue(specs)}\n}}"
    lines = [shlex.quote(f"{n}:{about}") for n, (_, about) in subcommands.items()]
    cases = [f"      {n}) {_name_function(inner)} ;;" for n, (inner, _) in subcommands.items()]
    return "\n".join(
        [
            f"{name}() {{",
            "  local state line",
            "  local -a names",
            f"  _arguments -C \\\n    {_continue([*specs, *ZSH_STATES])}",
            "  case $state in",
            f"    name) names=({' '.join(lines)}); _describe command names ;;",
            "    rest) case $words[1] in",
            *cases,
            "    esac ;;",
            "  esac",
            "}",
        ]
    )


def _name_function(parser: argparse.ArgumentParser) -> str:
    return "_" + parser.prog.replace(" ", "_").replace("-", "_")


def _continue(specs: list[str]) -> str:
    return " \\\n    ".join(specs)


def _write_zsh_specs(action: argparse.Action) -> Iterator[str]:
    about = re.sub(r"([\[\]:\\])", r"\\\1", expand_help(action))
    value = f"({_join(action)})" if _list_choices(action) else "_files" if is_file(action) else ""
    metavar = re.sub(r"([:\\])", r"\\\1", str(action.metavar or action.dest))
    if not action.option_strings:
        many = action.nargs in ("*", "+", argparse.REMAINDER)
        yield shlex.quote(f"{'*' if many else ''}:{metavar}:{value or '_files'}")
        return
    repeated = "*" if isinstance(action, argparse._AppendAction) else ""
    takes = "" if action.nargs == 0 else f":{metavar}:{value}"
    for option in action.option_strings:
        yield shlex.quote(f"{repeated}{option}[{about}]{takes}")


def write_fish(top: Parser) -> str:
    parsers = list(walk_parsers(top))
    paths = " ".join(f"'{parser.prog}'" for parser in parsers)
    lines = [
        "# fish completion of weft: weft completion fish > ~/.config/fish/completions/weft.fish",
        "function __weft_path",
        "  set -l path weft",
        "  for word in (commandline -opc)[2..-1]",
        f'    if contains -- "$path $word" {paths}',
        '      set path "$path $word"',
        "    end",
        "  end",
        "  echo $path",
        "end",
    ]
    for parser in parsers:
        at = f"complete -c weft -n 'test (__weft_path | string collect) = \"{parser.prog}\"'"
        for name, (_, about) in list_subcommands(parser).items():
            lines.append(f"{at} -f -a {name} -d {_quote_fish(about)}")
        for action in list_actions(parser):
            if action.option_strings:
                lines.append(f"{at} {_write_fish_option(action)}")
            elif _list_choices(action):
                lines.append(f"{at} -f -a {_quote_fish(_join(action))}")
    return "\n".join(lines)


def _write_fish_option(action: argparse.Action) -> str:
    words = [
        f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
        for option in action.option_strings
    ]
    if _list_choices(action):
        words.append(f"-x -a {_quote_fish(_join(action))}")
    elif action.nargs != 0:
        words.append("-r" if is_file(action) else "-x")
    return " ".join([*words, f"-d {_quote_fish(expand_help(action))}"])


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS = {"bash": write_bash, "zsh": write_zsh, "fish": write_fish}


# ---- Manual pages -----------------------------------------------------------------------------


def run_man(args: argparse.Namespace) -> int:
    """Prints one page, or writes all to a directory."""
    parsers = {parser.prog: parser for parser in walk_parsers(build_parser())}
    if args.directory is None:
        words = "weft" if args.command is None else f"weft {args.command}"
        if args.command is not None and args.command not in COMMANDS:
            raise InputError("man", f"{args.command!r} is not a command", "weft --help lists them")
        print(write_page(parsers[words]), end="")
        return 0
    directory = Path(args.directory)
    if not directory.is_dir():
        raise InputError(args.directory, "not a directory", "make it: weft man writes weft.1 in it")
    pages = {"weft": parsers["weft"]} | {f"weft-{n}": parsers[f"weft {n}"] for n in COMMANDS}
    for name, parser in pages.items():
        (directory / f"{name}.1").write_text(write_page(parser), encoding="utf-8")
    print(f"{directory}: {len(pages)} manual pages; man -l {directory / 'weft.1'}")
    return 0


def write_page(parser: argparse.ArgumentParser) -> str:
    """The roff of a command's manual page, its actions included."""
    name = parser.prog.replace(" ", "-")
    word = parser.prog.removeprefix("weft").strip()
    about = COMMANDS[word][1] if word else "measure, model, tune and simulate fast networks"
    related = ", ".join(f"weft-{other}(1)" for other in COMMANDS if other != word)
    lines = [
        f'.TH "{name.upper()}" "1" "" "weft {__version__}" "weft manual"',
        ".SH NAME",
        f"{_escape(name)} \\- {_escape(about)}",
        ".SH SYNOPSIS",
        *_write_synopsis(parser),
        *([".SH DESCRIPTION", _escape(parser.description)] if parser.description else []),
        *_write_options(parser),
    ]
    for inner in list(walk_parsers(parser))[1:] if word else []:
        lines += [f'.SH "{_escape(inner.prog.upper())}"', *_write_synopsis(inner)]
        lines += [".PP", _escape(inner.description or ""), *_write_options(inner)]
    lines += [".SH EXIT STATUS", *(line for row in STATUS for line in _write_item(*row))]
    return "\n".join([*lines, ".SH SEE ALSO", _escape(related)]) + "\n"


def _write_synopsis(parser: argparse.ArgumentParser) -> list[str]:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    return [_escape(usage)]


def _write_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Each group of options; subcommands as a list."""
    for group in parser._action_groups:
        shown = [a for a in group._group_actions if a in list_actions(parser)]
        items = [(_format_names(action), expand_help(action)) for action in shown]
        if any(isinstance(a, argparse._SubParsersAction) for a in group._group_actions):
            items += [(n, about) for n, (_, about) in list_subcommands(parser).items()]
        if items:
            yield f'.SS "{_escape((group.title or "options").capitalize())}"'
            for item in items:
                yield from _write_item(*item)


def _format_names(action: argparse.Action) -> str:
    metavar = action.metavar if action.metavar is not None else action.dest.upper()
    value = " ".join(metavar) if isinstance(metavar, tuple) else str(metavar)
    if not action.option_strings:
        return value
    takes = "" if action.nargs == 0 else f" {_join(action).replace(' ', '|') or value}"
    return f"{', '.join(action.option_strings)}{takes}"


def _write_item(name: str, about: str) -> tuple[str, ...]:
    return ".TP", f"\\fB{_escape(name)}\\fR", _escape(about)


def _escape(text: str) -> str:
    """Text for roff: hyphens stay hyphens, and no line begins as a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
