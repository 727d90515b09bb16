"""No loader executes what a file contains: a tripwire is planted in every format that regard reads."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytestmark = pytest.mark.filterwarnings("ignore")

CALLS = re.compile(
    r"(?<![.\w])(json\.loads?|tomllib\.loads?|torch\.load|np\.load|np\.memmap|np\.fromfile|load_file|load_model|safe_open|"
    r"\w+\.from_pretrained|Image\.open|soundfile\.SoundFile|\w+\.ParquetFile|\w+\.load_from_disk|\w+\.load_dataset|tokenizers\.Tokenizer\.from_str|zipfile\.ZipFile|"
    r"yaml\.\w*load|pickle\.loads?|marshal\.loads?|eval|exec)\("
)
"""What reads data, or runs code."""

LOADERS = {
    "commands/run_models.py": "a folder of a model of regard",
    "data/corpora/opinions.py": "TOML of the package",
    "data/corpora/phrasebook/bilingual_phrase.py": "TOML of the package",
    "data/encoding.py": "JSON, and arrays of numbers mapped as raw bytes: not .npy, so no objects; JSON of a tokenizer",
    "data/media.py": "Pillow, with a list of formats: never EPS, for which it would start Ghostscript; libsndfile",
    "data/rows.py": "JSON; pyarrow ≥ 17; import_module of fixed names",
    "data/tokenizer.py": "the `tokenizers` library, from JSON",
    "data/tokenizer_pair.py": "JSON; the kinds of readers are a fixed list",
    "decoding/ctranslate2.py": "CTranslate2's own binary format",
    "decoding/model_folders.py": "JSON and TOML",
    "demo.py": "a folder of a model of regard",
    "files.py": "JSON",
    "learn/check.py": "TOML of the package",
    "models/picture_encoders.py": "torch.load with weights_only=True",
    "models/saved_weights.py": "JSON and safetensors; model types are a fixed list; plug-ins (plugins.py) need the "
    "user's permission, by the name of their package",
    "seeing/corpus.py": "JSON and safetensors",
    "seeing/storage.py": "JSON and safetensors; the parts are a fixed list",
    "seeing/text_models.py": "transformers, trust_remote_code=False unless the caller says True",
    "seeing/trace.py": "JSON and safetensors; the parts are a fixed list",
    "training/run_batches.py": "JSON",
    "training/checkpoint.py": "torch.load with weights_only=True, and safetensors",
    "training/evaluation.py": "TOML",
    "training/own_model.py": "TOML; safetensors, or `from_pretrained` of the caller's own class",
    "training/parameters.py": "the `tokenizers` library, from JSON; a folder of a model of regard",
    "training/recipe_files.py": "TOML",
    "training/results.py": "JSON",
    "training/run_folder.py": "TOML",
    "viewer/export.py": "JSON of its own server",
    "viewer/model_routes.py": "JSON that ships",
}
"""Every file that reads data, and why no data becomes code there."""


def test_every_loader_is_listed() -> None:
    source = ROOT / "src" / "regard"
    files = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    calls = {name for name, text in files.items() if CALLS.search(re.sub(r'"""[\s\S]*?"""|#.*', "", text))}
    assert calls - set(LOADERS) == set(), "say in LOADERS why no data becomes code there"
    assert all((source / name).is_file() for name in LOADERS)


def test_every_torch_load_reads_weights_only() -> None:
    for path in (ROOT / "src" / "regard").rglob("*.py"):
        for call in re.findall(r"torch\.load\(.*", path.read_text(encoding="utf-8")):
            assert "weights_only=True" in call, path


class Tripwire:
    """Unpickled, it makes a folder."""

    def __init__(self, wire: Path) -> None:
        self.wire = wire

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.wire),)


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    return tmp_path / "tripped"


def code(wire: Path) -> str:
    return f"import os\nos.mkdir({str(wire)!r})\nclass Evil:\n    pass\n"


def test_the_tripwire_trips(wire: Path) -> None:
    pickle.loads(pickle.dumps(Tripwire(wire)))
    assert wire.is_dir()
    wire.rmdir()
    exec(code(wire))
    assert wire.is_dir()


def refused(load: Callable[[], object], wire: Path) -> None:
    """Whatever the loader makes of it, an error or a value, the wire is not tripped."""
    with contextlib.suppress(ValueError):
        load()
    assert not wire.exists()


def formats(wire: Path) -> dict[str, bytes]:
    """Files that would run code if they were unpickled, by the library that writes them."""
    array, saved = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([Tripwire(wire)], dtype=object), allow_pickle=True)
    torch.save({"weight": Tripwire(wire)}, saved)
    return {"pickle": pickle.dumps(Tripwire(wire)), "npy": array.getvalue(), "pt": saved.getvalue()}


@pytest.mark.parametrize("format", ["pickle", "npy", "pt"])
class TestPickles:
    """A file of another format, under the name that a loader opens."""

    def test_efficientnet(self, format: str, wire: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from regard.models import picture_encoders

        (tmp_path / "weights.pth").write_bytes(formats(wire)[format])
        monkeypatch.setenv(picture_encoders.FILE, str(tmp_path / "weights.pth"))
        refused(picture_encoders.imagenet, wire)

    def test_checkpoint(self, format: str, wire: Path, tmp_path: Path) -> None:
        from regard.training.checkpoint import Checkpoints
        from regard.training.recipe_files import load_recipe
        from regard.training.run_folder import Run

        run = Run.create(load_recipe("bahdanau-phrasebook"), tmp_path / "run")
        run.last.write_bytes(formats(wire)[format])
        with pytest.raises(ValueError, match=r"last\.ckpt"):
            Checkpoints(run, 1).resumable(print)
        assert not wire.exists()

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.source.json"])
    def test_model(self, format: str, name: str, wire: Path, tmp_path: Path) -> None:
        from regard.decoding import model_folders as loader

        shipped = loader.SHIPPED / loader.shipped()[0]
        for file in shipped.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / name).write_bytes(formats(wire)[format])
        refused(lambda: loader.load(tmp_path), wire)

    @pytest.mark.parametrize("name", ["0000.safetensors", "trace.json"])
    def test_trace(self, format: str, name: str, wire: Path, tmp_path: Path) -> None:
        import regard
        from tests.support.viewer_client import seen_of

        seen_of().save(tmp_path / "trace")
        (tmp_path / "trace" / name).write_bytes(formats(wire)[format])
        refused(lambda: regard.load_trace(tmp_path / "trace")[0].weights, wire)

    @pytest.mark.parametrize("name", ["source.bin", "encoded.json"])
    def test_encoded_corpus(self, format: str, name: str, wire: Path, tmp_path: Path) -> None:
        from regard.data import EncodedCorpus, Pair, TokenizerPair

        pairs = [Pair("a b", "b a", 0)]
        tokenizers = TokenizerPair.train("word", 10, pairs)
        EncodedCorpus.build(pairs, tokenizers, folder=tmp_path / "data")
        content = formats(wire)[format]
        (tmp_path / "data" / name).write_bytes(content)
        if name == "source.bin":
            index = json.loads((tmp_path / "data" / "encoded.json").read_text())
            index["sizes"]["source"] = len(content)
            index["about"]["dtype"] = "O"  # objects are what numpy would unpickle
            (tmp_path / "data" / "encoded.json").write_text(json.dumps(index))
        refused(lambda: EncodedCorpus.load(tmp_path / "data"), wire)

    @pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".tsv.xz"])
    def test_corpus(self, format: str, suffix: str, wire: Path, tmp_path: Path) -> None:
        from regard.data.rows import reader

        file = tmp_path / f"corpus{suffix}"
        file.write_bytes(formats(wire)[format])
        columns = ("a", "b") if suffix in (".jsonl", ".parquet") else None
        refused(lambda: list(reader(file)(file, columns)), wire)

    @pytest.mark.parametrize("name", ["a.png", "a.wav"])
    def test_media(self, format: str, name: str, wire: Path, tmp_path: Path) -> None:
        from regard.data.media import PictureReader, SoundReader

        (tmp_path / name).write_bytes(formats(wire)[format])
        reader: Any = PictureReader(8) if name == "a.png" else SoundReader()
        refused(lambda: reader.encode(str(tmp_path / name)), wire)


class TestHuggingFace:
    """A model folder that brings Python code along."""

    @pytest.fixture(scope="class")
    def whole(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        transformers = pytest.importorskip("transformers", reason="needs transformers")
        folder = tmp_path_factory.mktemp("whole")
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        transformers.BertModel(transformers.BertConfig(vocab_size=8, **sizes)).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]))
        transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
        return folder

    def plant(self, whole: Path, folder: Path, wire: Path, changes: dict[str, dict[str, Any]]) -> Path:
        folder.mkdir()
        for file in whole.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "evil.py").write_text(code(wire))
        for name, values in changes.items():
            old = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
            (folder / name).write_text(json.dumps({**old, **values}))
        return folder

    @pytest.mark.parametrize(
        "changes",
        [
            {"config.json": {"auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}},
            {"config.json": {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}},
            {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}},
            {"tokenizer_config.json": {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}},
            {"tokenizer_config.json": {"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}},
            {"config.json": {"_attn_implementation": "evil/kernel"}},
            {"config.json": {"text_config": {"attn_implementation": "evil/kernel"}}},
        ],
        ids=["auto_map", "own type", "tokenizer", "own tokenizer", "jinja", "kernel", "nested kernel"],
    )
    def test_no_code_runs_and_nobody_is_asked(
        self,
        whole: Path,
        wire: Path,
        tmp_path: Path,
        changes: dict[str, dict[str, Any]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from regard.seeing.text_models import load_text_model

        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))
        folder = self.plant(whole, tmp_path / "model", wire, changes)
        refused(lambda: load_text_model(str(folder)), wire)
        assert sys.stdin.tell() == 0, "a question was asked"

    def test_code_that_is_needed_is_named_with_its_flag(self, whole: Path, wire: Path, tmp_path: Path) -> None:
        from regard.seeing.text_models import load_text_model

        changes = {"config.json": {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}}
        folder = self.plant(whole, tmp_path / "model", wire, changes)
        with pytest.raises(ValueError, match=r"Python code that comes with it.*--trust-remote-code"):
            load_text_model(str(folder))

    @pytest.mark.parametrize("format", ["pickle", "pt"])
    def test_weights_are_not_unpickled(self, whole: Path, wire: Path, tmp_path: Path, format: str) -> None:
        from regard.seeing.text_models import load_text_model

        folder = self.plant(whole, tmp_path / "model", wire, {})
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(formats(wire)[format])
        with pytest.raises(ValueError, match="could not be loaded"):
            load_text_model(str(folder))
        assert not wire.exists()

    def test_the_undamaged_folder_loads(self, whole: Path) -> None:
        from regard.seeing.text_models import load_text_model

        assert load_text_model(str(whole)).max_length


def test_arrow_extension_types_are_not_unpickled(wire: Path, tmp_path: Path) -> None:
    """The metadata that PyExtensionType unpickled before pyarrow 14.0.1 (CVE-2023-47248)."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from regard.data.rows import reader

    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Tripwire(wire)),
    }
    fields = [pyarrow.field(name, pyarrow.string(), metadata=metadata) for name in ("a", "b")]
    table = pyarrow.table([["x"], ["y"]], schema=pyarrow.schema(fields))
    parquet.write_table(table, tmp_path / "corpus.parquet")
    file = tmp_path / "corpus.parquet"
    refused(lambda: list(reader(file)(file, ("a", "b"))), wire)


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.mkdir [x]", "base = ['$(touch x)']", "x = __import__('os').mkdir('x')"]
)
def test_a_recipe_is_data(text: str, tmp_path: Path, wire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic")
    from regard.training.recipe_files import load_recipe

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(text)
    refused(lambda: load_recipe(tmp_path / "a.toml"), wire)
    assert not (tmp_path / "x").exists()
