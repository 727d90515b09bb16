"""The house: imports point one way, the core needs PyTorch and nothing else, files stay readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "regard"

# What each room may import of ours (design.md): attention ← layers ← models ← (training, decoding), attention ←
# seeing ← viewer. cli.py and the commands stand above the rooms. Every room may read and write files and
# compare them with their checksums, leaves process groups, and knows the special tokens (`FILES`).
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
    "decoding": {"attention", "layers", "models", "data"},
    "training": {"attention", "layers", "models", "data", "decoding", "seeing"},  # evaluating decodes and aligns
    "seeing": {"attention", "__version__"},
    "viewer": {"attention", "layers", "models", "data", "decoding", "seeing", "__version__"},
    "serving": {"decoding", "seeing", "viewer", "__version__"},
    "learn": {"attention", "layers", "models", "data", "decoding", "training", "seeing"},
    "demo": {"attention", "layers", "models", "data", "decoding", "training", "seeing"},
}
FILES = {
    "atomic_write", "checksums", "noun_count", "json_file", "plugins", "process_group_exit", "special_tokens",
    "unknown_words", "validation_sentences",
}  # fmt: skip
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


@pytest.mark.parametrize("room", [path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()])
def test_imports_point_one_way(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        late = LATE.get(path.relative_to(SOURCE).as_posix(), set())
        beyond = _rooms_imported(path) - ALLOWED[room] - {room, *FILES} - late
        assert not beyond, f"{path.relative_to(SOURCE)} imports {sorted(beyond)}"


def test_the_viewers_folders_import_one_way() -> None:
    """data ← http ← export."""
    later = {"data": ("http", "export"), "http": ("export",)}
    for folder, names in later.items():
        for path in (SOURCE / "viewer" / folder).rglob("*.py"):
            lines = [x.strip() for x in path.read_text(encoding="utf-8").splitlines() if x.strip().startswith("from .")]
            wrong = [x for x in lines if x.split()[1].lstrip(".").split(".")[0] in names]
            assert not wrong, f"{path.relative_to(SOURCE)}: {wrong}"


def test_this_test_sees_imports() -> None:
    assert _rooms_imported(SOURCE / "attention" / "backends" / "sdpa.py") == {"attention"}
    assert "attention" in _rooms_imported(SOURCE / "__init__.py")  # inside functions too
    assert "seeing" in _rooms_imported(SOURCE / "demo" / "worked_examples.py")


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
for name in ("jaxtyping", "rich", "typer", "lightning", "transformers", "triton"):
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


def test_files_can_be_read_in_one_sitting() -> None:
    long = {path.name: n for path in SOURCE.rglob("*.py") if (n := len(path.read_text().splitlines())) > 500}
    assert not long, f"split by meaning: {long}"


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
