"""Names and places: one meaning per name, one test file per module, nothing reaches into another module's privates."""

import ast
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

from tests.support.paths import ROOT

SOURCE, TESTS = ROOT / "src" / "regard", ROOT / "tests"
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__"))

# Modules that are tested through another file than that of their own path: (modules, test file, reason).
TESTED_ELSEWHERE = [
    ("attention/backends/*", "attention/backends/test_backends.py", "each backend is held to the reference there"),
    ("attention/energies.py", "attention/backends/test_backends.py", "every form on every backend"),
    ("attention/energy_matrix.py", "attention/weights/test_weights.py", "Weights reads all its blocks"),
    ("attention/energies/*", "attention/test_attend.py", "every energy beside the formula of its paper"),
    ("attention/backends/fused.py", "attention/backends/test_backends.py", "held to the reference there"),
    ("attention/masks/*", "attention/test_masks.py", "every mask dense, as intervals and drawn"),
    ("attention/blocks.py", "attention/weights/test_weights.py", "Weights reads all its blocks"),
    ("attention/weights/*", "attention/weights/test_weights.py", "each statistic against the dense matrix"),
    ("attention/contributions/*", "attention/contributions/test_contribution_matrix.py", "against the dense matrix"),
    ("attention/derivatives/*", "attention/derivatives/test_second_derivatives.py", "derivatives of every order"),
    ("attention/blocks.py", "attention/test_promises.py", "inputs changed in place"),
    ("attention/request.py", "seeing/capture/test_watch.py", "watching is its only user"),
    ("attention/attend.py", "attention/backends/test_backends.py", "which backend is selected and why"),
    ("attention/attend.py", "attention/test_lecture_examples.py", "the lecture's look-ups"),
    ("attention/normalizers/*", "attention/normalizers/test_normalizers.py", "every normalizer by one definition"),
    ("attention/kernels/*.py", "attention/kernels/test_custom_ops.py", "shared by the kernels"),
    ("attention/kernels/additive/*", "attention/kernels/additive/test_additive_triton.py", "one op, one test"),
    ("attention/kernels/distance/*", "attention/kernels/distance/test_distance_attention_triton.py", "one op"),
    ("attention/kernels/statistics/*", "attention/kernels/statistics/test_statistics_gpu.py", "one set of kernels"),
    ("commands/*", "test_cli.py", "commands without a file of their own run as processes there"),
    ("demo/*", "training/trainer/test_fit.py", "the demo runs whole there"),
    ("data/corpora/phrasebook/*", "data/corpora/phrasebook/test_phrasebook.py", "one grammar, one test"),
    ("data/corpora/scenes/*", "data/corpora/scenes/test_scenes.py", "one generator, one test"),
    ("data/corpora/*", "training/recipe/test_shipped_recipes.py", "trained from there"),
    ("data/*.py", "data/test_batches.py", "read, encoded and batched there"),
    ("decoding/huggingface/*", "decoding/huggingface/test_transformers_export.py", "one export, one test"),
    ("decoding/exportable_transformer.py", "decoding/test_export_refusals.py", "what is refused and why"),
    ("decoding/*", "decoding/test_translation.py", "parts of a search that decodes whole sentences"),
    ("layers/*", "models/test_encoder_decoder.py", "layers of models compared with PyTorch's and the papers'"),
    ("models/*", "models/test_encoder_decoder.py", "every encoder under every decoder"),
    ("learn/*", "learn/test_check_answer.py", "every exercise, its right answer and its mistakes"),
    ("seeing/capture/*", "seeing/capture/test_watch.py", "every way to attend, watched"),
    ("seeing/drawing/*", "commands/test_see.py", "drawn by the command"),
    ("seeing/effects/*", "seeing/effects/test_effect_sweep.py", "every replacement against hooks written by hand"),
    ("training/recipe/*", "training/recipe/test_recipe.py", "a recipe loaded, checked and written"),
    ("serving/*", "serving/test_serve_application.py", "limits and settings of the API"),
    ("training/distributed/*", "training/distributed/test_process_groups.py", "several processes that train"),
    ("training/*", "training/trainer/test_fit.py", "parts of a run, trained there"),
    ("viewer/*", "viewer/http/test_openapi.py", "every route of the API"),
]


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
    """By the same path, or by the first row of the table that names it."""
    missing = []
    for module in MODULES:
        rows = (TESTS / test for pattern, test, _ in TESTED_ELSEWHERE if fnmatch(module.as_posix(), pattern))
        own = TESTS / module.parent / f"test_{module.name}"
        if not own.exists() and not next(rows, own).exists():
            missing.append(module.as_posix())
    assert not missing


def test_every_row_of_the_table_is_needed() -> None:
    own = {module.as_posix() for module in MODULES if (TESTS / module.parent / f"test_{module.name}").exists()}
    for pattern, test, _ in TESTED_ELSEWHERE:
        assert (TESTS / test).exists(), test
        assert any(fnmatch(module.as_posix(), pattern) for module in MODULES if module.as_posix() not in own), pattern


def test_every_test_folder_mirrors_a_source_folder() -> None:
    own = {"support", "browser", "static", "fuzz"}
    for path in TESTS.rglob("test_*.py"):
        folder = path.relative_to(TESTS).parent
        assert (folder.parts[:1] and folder.parts[0] in own) or (SOURCE / folder).is_dir(), path


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
