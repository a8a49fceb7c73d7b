"""Reports syntax errors, compiler warnings and undefined names in the given files."""

import ast
import builtins
import sys
import warnings
from collections.abc import Iterator

GIVEN = {*dir(builtins), "__file__", "__name__", "__doc__", "__path__"}


def complaints(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        compile(text, path, "exec")
        tree = ast.parse(text)
    except (SyntaxError, ValueError, OSError) as error:
        yield f"{path}:{getattr(error, 'lineno', 1)}: {error}"
        return
    bound = GIVEN | {name for node in ast.walk(tree) for name in names(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and "*" not in bound and node.id not in bound:
            yield f"{path}:{node.lineno}: undefined name {node.id!r}"


def names(node: ast.AST) -> list[str]:
    """Names a node binds. Scopes are ignored: a name bound anywhere in the file counts as defined."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name] if node.name else []
    return [node.rest] if isinstance(node, ast.MatchMapping) and node.rest else []


if __name__ == "__main__":
    warnings.simplefilter("error")
    for named in sys.argv[1:]:
        for complaint in complaints(named):
            print(complaint)
