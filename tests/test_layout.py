"""The house: imports point one way, the core needs PyTorch and nothing else, a file is a topic."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "regard"
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__"))

# What each room may import of ours: attention ← layers ← models ← (training, decoding), attention ← seeing ← viewer.
# Commands, the demo and the exercises stand above the rooms. Every room may use the files at the top (`FILES`).
ALLOWED = {
    "commands": {
        "attention",
        "layers",
        "models",
        "data",
        "decoding",
        "training",
        "seeing",
        "viewer",
        "serving",
        "demo",
        "__version__",
    },
    "attention": set(),
    "layers": {"attention"},
    "models": {"attention", "layers"},
    "data": set(),
    "decoding": {"attention", "layers", "models", "data", "seeing"},  # what a model answers is watched
    "training": {"attention", "layers", "models", "data", "decoding", "seeing"},  # evaluating decodes and aligns
    "seeing": {"attention", "__version__"},
    "viewer": {"attention", "layers", "models", "data", "decoding", "seeing", "__version__"},
    "learn": {"attention", "layers", "models", "data", "decoding", "training", "seeing"},
}
FILES = {"files", "plugins", "special_tokens", "wording"}
LATE = {"seeing/trace.py": {"viewer"}}  # where somebody says show() or to_html(), and not before


def _rooms_imported(path: Path) -> set[str]:
    """The rooms that a file imports, also inside functions. Imports of regard by its name are refused."""
    inside = path.relative_to(SOURCE).parent.parts
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = inside[: len(inside) - (node.level - 1)]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            rooms.update((*base, *name.split("."))[0] for name in names)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            absolute = [name for name in names if name.split(".")[0] == "regard"]
            assert not absolute, f"{path.relative_to(SOURCE)}:{node.lineno} imports {absolute[0]}; write it relatively"
    return rooms


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_imports_point_one_way(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        late = LATE.get(path.relative_to(SOURCE).as_posix(), set())
        beyond = _rooms_imported(path) - ALLOWED[room] - {room, *FILES} - late
        assert not beyond, f"{path.relative_to(SOURCE)} imports {sorted(beyond)}"


def test_this_test_sees_imports() -> None:
    assert _rooms_imported(SOURCE / "attention" / "backends" / "sdpa.py") == {"attention"}
    assert "attention" in _rooms_imported(SOURCE / "__init__.py")  # inside functions too
    assert "decoding" in _rooms_imported(SOURCE / "commands" / "translate.py")


@pytest.mark.parametrize("line", ["import regard", "from regard import attend", "    import regard.seeing as seeing"])
def test_absolute_imports_of_regard_are_refused(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    (tmp_path / "module.py").write_text(f"def function():\n    pass\n{line}\n")
    with pytest.raises(AssertionError, match="write it relatively"):
        _rooms_imported(tmp_path / "module.py")


def test_the_core_imports_pytorch_and_nothing_else() -> None:
    """In a process where every other package is refused, attend() works."""
    code = """
import sys
for name in ("jaxtyping", "rich", "typer", "pydantic", "transformers", "triton"):
    sys.modules[name] = None  # importing it now raises ImportError
import torch, regard
regard.attend(torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 4))
x = torch.randn(3, 4)
regard.attend(x, x, x, energy=regard.Additive(4, 4, 8), mask=regard.causal(), weights=True)[1].stats(entropy=True)
assert set(regard.__all__) <= set(dir(regard))
assert all(hasattr(regard, name) for name in regard.__all__)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_importing_regard_is_light() -> None:
    code = "import sys, regard; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_unknown_names_are_refused() -> None:
    import regard

    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        regard.atend  # noqa: B018


def test_a_file_is_read_in_one_sitting() -> None:
    long = {path.as_posix(): n for path in MODULES if (n := len((SOURCE / path).read_text().splitlines())) > 800}
    assert not long, f"split by meaning: {long}"


def test_files_are_topics_and_not_single_things() -> None:
    """150 to 700 lines, a topic that one test file tests: what is true of each cannot be tested, but of most it can."""
    lines = sorted(len((SOURCE / path).read_text().splitlines()) for path in MODULES)
    assert lines[len(lines) // 4] >= 150, "a quarter of the files are small: are they topics?"


def test_no_file_is_one_docstring() -> None:
    for path in SOURCE.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert any(not isinstance(node, ast.Expr) for node in body), path


def test_names_do_not_repeat_their_folder() -> None:
    repeated = [path.as_posix() for path in MODULES if path.parent.name and path.parent.name in path.stem.split("_")]
    assert not repeated


def test_no_file_and_no_class_has_the_name_of_another_in_its_room() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.parse((SOURCE / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[path.parts[0], node.name].append(path.as_posix())
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_every_room_has_its_tests() -> None:
    own = {"support", "browser", "static", "fuzz", "golden"}
    for path in (Path(__file__).parent).rglob("test_*.py"):
        folder = path.relative_to(Path(__file__).parent).parent
        assert not folder.parts or folder.parts[0] in own or (SOURCE / folder).is_dir(), path


MEMORY = """
import torch, regard
torch.set_num_threads(1)
def peak():  # not getrusage: its peak survives exec, and a child of a large process would start from its parent's
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
T, D = 8192, 8
q, k, v = (torch.randn(1, T, D, requires_grad=True) for _ in range(3))
energy = regard.Additive(D, D, 8)
small = torch.randn(1, 600, D, requires_grad=True)
def work(q, k, v):
    {work}
work(small, small, small)  # whatever the first call loads is not the work's memory
before = peak()
work(q, k, v)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize(
    "work",
    [
        "regard.attend(q, k, v, energy=energy, mask=regard.causal()).sum().backward()",
        "regard.attend(q, k, v, energy=regard.Gaussian()).sum().backward()",
        "regard.attend(q, k, v, normalize=regard.Sparsemax(), mask=regard.window(100)).sum().backward()",
        "regard.attend(q, k, v, weights=True)[1].stats(entropy=True, top=8, received=True, map=(64, 64))",
    ],
    ids=["additive", "distance", "sparsemax", "statistics"],
)
def test_memory_grows_with_length_not_its_square(work: str) -> None:
    """At T = 8,192 one T×T matrix is 256 MiB and [T, T, D] 2 GiB; none of these may hold even a good part of one."""
    code = MEMORY.replace("{work}", work)
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert float(done.stdout) < 150, f"{done.stdout.strip()} MiB"


def _tree(module: Path) -> ast.Module:
    return ast.parse((SOURCE / module).read_text(encoding="utf-8"))


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


OF_PYTHON = {
    "_replace",
    "_asdict",
    "_version",
    "_base",
}  # of NamedTuple; of a tensor: its changes, what it is a view of


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
