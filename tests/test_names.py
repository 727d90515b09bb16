"""Names and places: one meaning per name, one test file per module, nothing reaches into another module's privates."""

import ast
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

from tests.support.paths import ROOT

SOURCE, TESTS = ROOT / "src" / "regard", ROOT / "tests"
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__"))

# Modules without a test file of their own path, and the file that tests them instead.
TESTED_BY: dict[str, str] = {}


def _tree(module: Path) -> ast.Module:
    return ast.parse((SOURCE / module).read_text(encoding="utf-8"))


def test_no_file_name_is_used_twice() -> None:
    paths = defaultdict(list)
    for module in MODULES:
        paths[module.stem].append(module.as_posix())
    assert not {name: where for name, where in paths.items() if len(where) > 1}


def test_no_class_name_is_used_twice() -> None:
    paths = defaultdict(list)
    for module in MODULES:
        for node in _tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths[node.name].append(module.as_posix())
    assert not {name: where for name, where in paths.items() if len(where) > 1}


def test_folders_are_small() -> None:
    """About a dozen modules; `commands` has one per verb."""
    count = defaultdict(int)
    for module in MODULES:
        count[module.parent.as_posix()] += 1
    assert not {folder: n for folder, n in count.items() if n > 16 and folder != "commands"}


def test_every_module_has_its_test_file() -> None:
    missing = []
    for module in MODULES:
        rules = [test for pattern, test in TESTED_BY.items() if fnmatch(module.as_posix(), pattern)]
        tests = [TESTS / test for test in rules] or [TESTS / module.parent / f"test_{module.name}"]
        missing += [f"{module} → {test.relative_to(TESTS)}" for test in tests if not test.exists()]
    assert not missing, missing


def test_every_test_folder_mirrors_a_source_folder() -> None:
    own = {"support", "browser", "static", "fuzz"}
    for path in TESTS.rglob("test_*.py"):
        folder = path.relative_to(TESTS).parent
        assert folder.parts[:1] and folder.parts[0] in own or (SOURCE / folder).is_dir(), path


def _privates_defined(tree: ast.Module) -> set[str]:
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def _privates_used(tree: ast.Module) -> set[str]:
    """Names with a leading underscore, read from something other than `self` or `cls`, or imported."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.level:
            names.update(alias.name for alias in node.names)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


OF_PYTHON = {"_replace", "_asdict", "_version"}  # of NamedTuple, and of a tensor: how often it was changed in place


def test_no_module_uses_privates_of_another() -> None:
    defined = {module: _privates_defined(_tree(module)) for module in MODULES}
    ours = set().union(*defined.values()) - OF_PYTHON
    beyond = {
        module.as_posix(): sorted(names)
        for module in MODULES
        if (names := (_privates_used(_tree(module)) & ours) - defined[module])
    }
    assert not beyond


def test_no_decision_by_the_words_of_an_error() -> None:
    for module in MODULES:
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                assert "str(error)" not in ast.unparse(node), f"{module}:{node.lineno}"
