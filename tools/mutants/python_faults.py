"""Faults of Python files, and whether related tests notice them."""

from __future__ import annotations

import ast
import copy
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mutant import BUILD, ROOT, Mutant, Verdict, change_number
from related_tests import LIVE, TestTimes, module_of, reachable_tests
from test_run import run_tests

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# Values of which another is as good: how a figure looks, how long to wait, how to check a caller.
NO_FAULT_ARGUMENTS = re.compile(
    r"^(color|\w*width|\w*size|\w*pad|alpha|zorder|rotation|dpi|font\w*|marker\w*|strict|daemon|"
    r"indent|\w*timeout\w*|kw_only|slots|ensure_ascii|stacklevel|encoding)$"
)
NO_FAULT_CONSTANTS = re.compile(
    r"^_?[A-Z][A-Z_]*(_S|_IN|_PT|_LETTERS|TIMEOUT\w*|BACKLOG|_COLOU?RS?)$"
)
BY_WEIGHT = ("killed", "undecided", "survived", "live", "unreached")
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """Faulty nodes to stand in for this one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        if type(node.ops[0]) in COMPARE:
            yield _with(node, ops=[COMPARE[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not any(
            isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side)
            for side in (node.left, node.right)
        ):
            yield _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not _is_true(node.test):
        yield _with(node, test=ast.UnaryOp(op=ast.Not(), operand=node.test))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _with(node, value=not node.value)
    elif isinstance(node, ast.Constant) and _is_number(node):
        yield _with(node, value=change_number(node.value))  # type: ignore[arg-type]
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _with(node, id=NAMES[node.id])
    elif _is_effect(node):
        yield ast.Pass()
    elif isinstance(node, ast.Continue | ast.Break):
        yield ast.Break() if isinstance(node, ast.Continue) else ast.Continue()


def _is_effect(node: ast.AST) -> bool:
    """A statement done for what it changes."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute)
    return isinstance(node, ast.AugAssign)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_number(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    )


def _is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


def _skipped(node: ast.AST) -> set[int]:
    """Parts in which a fault says nothing of the tests: annotations, decorators, errors' texts."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = [node.returns, *node.decorator_list]
    elif isinstance(node, ast.ClassDef):
        parts = [*node.decorator_list]
    elif isinstance(node, ast.arg | ast.AnnAssign):
        parts = [node.annotation]
    elif _is_passed_over(node):
        parts = [node]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        parts = [node.left, node.right]  # sizes of buffers
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "round":
        parts = [*node.args[1:]]
    elif isinstance(node, ast.Call):
        parts = [k for k in node.keywords if k.arg and NO_FAULT_ARGUMENTS.search(k.arg)]
    elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
        parts = [node] if NO_FAULT_CONSTANTS.search(target.id) else []
    return {id(part) for part in parts if part is not None}


def _is_passed_over(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).endswith("Error")
    return isinstance(node, ast.Raise | ast.FormattedValue | ast.Assert)


@dataclass(frozen=True, slots=True)
class Site:
    """A node that may be changed: a field of its parent, inside the statement of a body."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    body: list[ast.stmt]
    statement: ast.stmt


def _sites(tree: ast.Module) -> Iterator[Site]:
    todo: list[tuple[ast.AST, list[ast.stmt], ast.stmt]] = [(tree, tree.body, tree.body[0])]
    while todo:
        parent, body, statement = todo.pop()
        skipped = _skipped(parent)
        if id(parent) in skipped:
            continue
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST) and id(node) not in skipped:
                    inner = (value, node) if isinstance(node, ast.stmt) else (body, statement)
                    yield Site(parent, field, index, node, *inner)
                    todo.append((node, *inner))


def python_mutants(path: Path) -> list[Callable[[], Mutant]]:
    """Every fault of a file; each is rendered when it is called."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    return [
        partial(_render, path, tree, site, other)
        for site in _sites(tree)
        for other in alternatives(site.node)
    ]


def _render(path: Path, tree: ast.Module, site: Site, other: ast.AST) -> Mutant:
    """The file with the fault, and before it a note that the statement runs."""
    note = ast.parse("__import__('sitecustomize').note_reached()").body[0]
    ast.copy_location(other, site.node)
    where = site.body.index(site.statement)
    _put(site, other)
    site.body.insert(where, note)
    text = ast.unparse(ast.fix_missing_locations(tree))
    after = _first_line(other)
    del site.body[where]
    _put(site, site.node)
    line = getattr(site.node, "lineno", 0)
    return Mutant(str(path.relative_to(ROOT)), line, _first_line(site.node), after, text)


def _put(site: Site, node: ast.AST) -> None:
    if site.index is None:
        setattr(site.parent, site.field, node)
    else:
        getattr(site.parent, site.field)[site.index] = node


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:90]


# ---- Judging --------------------------------------------------------------------------------


def judge_python(mutant: Mutant, times: TestTimes) -> Verdict:
    """Related test files run, nearest first, until one notices the fault."""
    path, start = ROOT / mutant.path, time.monotonic()
    outcomes, tests = {"unreached"}, []
    for test in times.pick(path):
        tests.append(test)
        outcomes.add(_try_test(mutant, test, times))
        if "killed" in outcomes:
            break
    if outcomes == {"unreached"} and any(
        test.startswith(LIVE) for test in reachable_tests(module_of(path))
    ):
        outcomes.add("live")
    outcome = next(name for name in BY_WEIGHT if name in outcomes)
    return Verdict(mutant, outcome, tuple(tests), time.monotonic() - start)


def _try_test(mutant: Mutant, test: str, times: TestTimes) -> str:
    cpu_limit_s = 5 + 4 * (times.cpu_s(test) or 0)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        file = Path(folder, "mutant.py")
        file.write_text(mutant.text, "utf-8")
        environment = {"WEFT_MUTANT_OF": str(ROOT / mutant.path), "WEFT_MUTANT": str(file)}
        run = run_tests([test], environment, cpu_limit_s)
        if run.status == 0:
            times.note(test, run.cpu_s)
            return "survived" if Path(folder, "reached").exists() else "unreached"
    # A test that also fails without the fault, as under load, has not noticed it.
    again = run_tests(run.failed or [test], {}, cpu_limit_s)
    if not run.failed:
        times.note(test, again.cpu_s if again.status == 0 else None)
    return "undecided" if again.status else "killed"
