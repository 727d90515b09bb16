"""What users see of regard, as JSON: metrics of short trainings, traces, HTTP answers, and output of commands.

Everything goes through what the documentation shows: the command line, `regard.watch`, HTTP, and names that docs
import. Each kind is a function from an empty folder to (name, function without arguments) pairs.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import json
import re
import struct
import time
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

import regard
from tests.support.command_line import run_command
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Cases = Iterator[tuple[str, Callable[[], Any]]]

# --- Recipes ---------------------------------------------------------------------------------------------------------

QUICK = [
    "training.updates=20",
    "training.tokens=300",
    "training.validate_every=10",
    "training.save_every=10",
    "training.log_every=5",
    "training.average=2",
    "training.precision=64-true",
    "training.accelerator=cpu",
    "search.beams=2",
    "seed=3",
]
RECIPES: dict[str, list[str]] = {
    "bahdanau-phrasebook": ["data.train=400", "data.valid=30", "data.test=20"],
    "transformer-phrasebook": ["data.train=400", "data.valid=30", "data.test=20"],
    "lstmn-phrases": ["data.sentences=400"],
    "lstm-attention-opinions": ["data.train=300", "data.valid=50", "data.test=20"],
    "pointer-phrasebook": ["data.train=400", "data.valid=30", "data.test=20"],
}
CLOCK = re.compile("second|time")
"""Columns of metrics.csv that depend on the machine."""


def metrics(name: str, folder: Path) -> list[dict[str, Any]]:
    """metrics.csv of a run of 20 updates in float64 without dropout."""
    shown = run_command("recipes", name).stdout
    section, dropout = "", []
    for line in shown.splitlines():
        section = line.strip("[]") if line.startswith("[") else section
        if re.match(r"(\w+_)?dropout = ", line) and section != "tokenizer":
            dropout.append(f"{section}.{line.split(' ')[0]}=0.0")
    done = run_command("train", name, *QUICK, *RECIPES[name], *dropout, "--out", str(folder / name))
    assert done.returncode == 0, done.stdout + done.stderr
    with (folder / name / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [{key: _number(x) for key, x in row.items() if not CLOCK.search(key)} for row in csv.DictReader(file)]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def recipes(folder: Path) -> Cases:
    for name in RECIPES:
        yield name, partial(metrics, name, folder)


# --- Traces ----------------------------------------------------------------------------------------------------------


def statistics(w: torch.Tensor) -> list[float]:
    """A few numbers that change when any weight of a head does: the largest, the spread of columns, two random sums."""
    w = w.double().nan_to_num()
    i, j = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in w.shape[-2:]), indexing="ij")
    received = w.mean(-2)
    sums = [(w * torch.cos(a * i + b * j)).sum((-2, -1)) for a, b in ((1.3, 0.7), (0.2, 2.9))]
    return [float(x) for x in (w.amax((-2, -1)), received.square().sum(-1), *sums)]


def described(seen: regard.Seen, entries: int = 1) -> dict[str, Any]:
    """Every call of a trace: what it is, and statistics of the weights of each head."""
    calls = []
    for call in seen:
        w = call.weights.dense()
        w = w.reshape(-1, *w.shape[-3:])[:entries]
        calls.append(
            {
                "name": call.name,
                "kind": call.kind,
                "shape": list(call.shape),
                "proved": bool(call.fidelity().error < 1e-4),
                "heads": [statistics(head) for entry in w for head in entry],
            }
        )
    return {"faithful": seen.faithful, "missed": [str(x) for x in seen.missed], "calls": calls}


class Attends(nn.Module):
    """One layer for each set of options of `regard.attend`."""

    def __init__(self, **options: dict[str, Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: OneCall(given) for name, given in options.items()})

    def forward(self, *inputs: torch.Tensor) -> None:
        for layer in self.layers.values():
            layer(*inputs)


class OneCall(nn.Module):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, **self.options)


class Grouped(nn.Module):
    """Four heads of queries over two of keys, through PyTorch's function, with a mask of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).view(*x.shape[:2], 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(*x.shape[:2], 4, 8).transpose(1, 2).chunk(2, 1)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        bias = torch.where(distance >= 0, -0.2 * distance, -torch.inf)
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        return x + z.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Attention as a textbook writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.view(*x.shape[:2], 4, 8).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(
            torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf
        )
        return x + (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


def watched(model: nn.Module, *inputs: Any, **named: Any) -> regard.Seen:
    with torch.no_grad(), regard.watch(model.eval()) as seen:
        model(*inputs, **named)
    return seen


def attend_energies() -> regard.Seen:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, 12, 8) for _ in range(3))
    return watched(
        Attends(
            scaled={"mask": regard.causal()},
            additive={"energy": regard.Additive(8, 8, 6)},
            general={"energy": regard.General(8, 8), "mask": regard.window(3)},
            cosine={"energy": regard.Cosine(), "mask": regard.padding(torch.tensor([12, 7]))},
            gaussian={"energy": regard.Gaussian()},
            rotary={"energy": regard.Rotary(), "mask": regard.causal()},
        ),
        q,
        k,
        v,
    )


def attend_normalizers() -> regard.Seen:
    torch.manual_seed(2)
    q, k, v = (torch.randn(1, 2, 14, 8) for _ in range(3))
    return watched(
        Attends(
            sparsemax={"normalize": regard.Sparsemax()},
            entmax={"normalize": regard.Entmax(1.5), "mask": regard.causal()},
            hard={"normalize": regard.Hard()},
            documents={"mask": regard.documents(torch.tensor([[0] * 5 + [1] * 9]))},
            prefix={"mask": regard.prefix(torch.tensor([4]))},
        ),
        q,
        k,
        v,
    )


def multihead_attention() -> regard.Seen:
    torch.manual_seed(3)
    layer = nn.TransformerDecoderLayer(32, 4, 48, batch_first=True)
    x, memory = torch.randn(2, 9, 32), torch.randn(2, 11, 32)
    hidden = torch.arange(11) >= torch.tensor([11, 8])[:, None]
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    model = nn.TransformerDecoder(layer, 2)
    return watched(model, x, memory, tgt_mask=mask, memory_key_padding_mask=hidden)


def torch_sdpa() -> regard.Seen:
    torch.manual_seed(4)
    return watched(nn.Sequential(Grouped(), Grouped()), torch.randn(2, 13, 32))


def written_out() -> regard.Seen:
    torch.manual_seed(5)
    return watched(nn.Sequential(SelfAttention(), SelfAttention()), torch.randn(2, 13, 32))


def llama_sdpa() -> regard.Seen:
    import transformers

    torch.manual_seed(6)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    return watched(transformers.LlamaForCausalLM(config), torch.randint(50, (2, 11)))


def bert_eager() -> regard.Seen:
    import transformers

    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        attn_implementation="eager",
    )  # fmt: skip
    mask = (torch.arange(11) < torch.tensor([11, 6])[:, None]).long()
    return watched(transformers.BertModel(config), torch.randint(50, (2, 11)), attention_mask=mask)


def generation() -> regard.Seen:
    import transformers

    torch.manual_seed(8)
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    with torch.no_grad(), regard.watch(model) as seen:
        model.generate(torch.randint(50, (1, 6)), max_new_tokens=8, do_sample=False)
    return seen


def shipped(name: str, sentence: str, folder: Path) -> dict[str, Any]:
    """The trace of a model that ships, as `regard see` saves it."""
    done = run_command("see", name, sentence, "--save", str(folder / name))
    assert done.returncode == 0, done.stdout + done.stderr
    return described(regard.load_trace(folder / name))


def saved_trace(folder: Path) -> dict[str, Any]:
    """Written and read again."""
    attend_energies().save(folder / "trace")
    return described(regard.load_trace(folder / "trace"), entries=2)


def traces(folder: Path) -> Cases:
    for make in (attend_normalizers, multihead_attention, torch_sdpa, written_out, llama_sdpa, bert_eager, generation):
        yield make.__name__, lambda make=make: described(make())
    yield "saved_trace", partial(saved_trace, folder)
    yield "tatoeba", partial(shipped, "tatoeba-transformer-en-fr", "Where is the library?", folder)
    yield "bahdanau", partial(shipped, "phrasebook-bahdanau-en-fr", "He hit me with a pie.", folder)


# --- HTTP ------------------------------------------------------------------------------------------------------------

SENTENCE = "My sister has a small black dog."
TATOEBA, SHAKESPEARE, OPINIONS = "tatoeba-transformer-en-fr", "shakespeare-transformer", "opinions-lstm"
LUONG, BAHDANAU = "phrasebook-luong-en-fr", "phrasebook-bahdanau-en-fr"
TILE = "top=0&left=0&bottom=12&right=12&height=6&width=6"
GET = {
    "traces": "/api/traces",
    "trace": "/api/traces/{t}",
    "missing trace": "/api/traces/nothing",
    "thumbs": "/api/traces/{t}/thumbs?size=8",
    "thumbs of a call": "/api/traces/{t}/thumbs?size=4&call=1&pool=mean",
    "stats": "/api/traces/{t}/stats",
    "patterns": "/api/traces/{t}/patterns",
    "weights": "/api/traces/{t}/calls/0/weights?heads=0&rows=2:5",
    "weights of columns": "/api/traces/{t}/calls/1/weights?heads=1,2&rows=3:4&cols=2:9",
    "weights as float16": "/api/traces/{t}/calls/5/weights?heads=1&type=float16",
    "weights as bytes": "/api/traces/{t}/calls/4/weights?heads=0&type=uint8",
    "weights of no head": "/api/traces/{t}/calls/0/weights?heads=99",
    "weights of no call": "/api/traces/{t}/calls/99/weights",
    "weights of wrong rows": "/api/traces/{t}/calls/0/weights?rows=5:2",
    "top": "/api/traces/{t}/calls/2/top?k=2&heads=0,1&rows=0:4",
    "received": "/api/traces/{t}/calls/3/received?heads=0",
    "tile": "/api/traces/{t}/calls/0/tile?" + TILE,
    "tile by mean": "/api/traces/{t}/calls/0/tile?pool=mean&head=2&" + TILE,
    "tile as bytes": "/api/traces/{t}/calls/1/tile?type=uint8&" + TILE,
    "tile without edges": "/api/traces/{t}/calls/0/tile",
    "neuron": "/api/traces/{t}/calls/0/neuron?query=4",
    "neuron of additive energy": "/api/traces/{t}/calls/1/neuron?query=4&head=1",
    "answers without a model": "/api/traces/{t}/answers",
    "samples": "/api/samples",
    "page": "/",
    "no page": "/nothing.js",
    "no route": "/api/nothing",
    "answers": "/api/traces/{read}/answers",
    "contributions": "/api/traces/{read}/calls/0/contributions?position=6&answer=1&heads=0",
    "tile of contributions": "/api/traces/{read}/calls/0/contributions/tile?position=6&answer=1&" + TILE,
    "silenced": "/api/traces/{read}/silenced?position=6&answer=1&heads=0.0",
}
POST: dict[str, tuple[str, Any]] = {
    "translate": ("/api/translate", {"text": SENTENCE, "models": [TATOEBA, "phrasebook-luong-en-fr"], "beams": 2}),
    "translate by nobody": ("/api/translate", {"text": SENTENCE, "models": ["nobody"]}),
    "translate nothing": ("/api/translate", {"text": " ", "models": [TATOEBA]}),
    "classify": ("/api/classify", {"text": "the food was not good", "models": [OPINIONS]}),
    "inside": ("/api/inside", {"model": TATOEBA, "text": "I see.", "layer": 1, "head": 2}),
    "next": ("/api/next", {"model": SHAKESPEARE, "text": "My lor", "temperature": 0.5}),
    "what if": (
        "/api/what-if",
        {"model": SHAKESPEARE, "text": "My lord", "silence": {"decoder.layers.0.attention": [1]}},
    ),
    "wrong key": ("/api/next", {"model": SHAKESPEARE, "word": "My lor"}),
    "unknown model": ("/api/traces", {"model": "nobody", "text": "My lord"}),
}


class Viewer:
    """A viewer with one trace of `attend` and the models that ship, asked over HTTP."""

    def __init__(self) -> None:
        self.closing = contextlib.ExitStack()
        self.ids: dict[str, str] = {}

    def start(self) -> None:
        from regard.viewer.library import Library, installed_models
        from regard.viewer.server import serving
        from regard.viewer.trace_view import TraceView

        view = TraceView.of(attend_energies())
        self.server = self.closing.enter_context(serving(Library([view], installed_models())))
        self.ids["{t}"] = json.loads(self.ask("GET", "/api/traces")[2])[0]["id"]
        created = self.ask("POST", "/api/traces", {"model": SHAKESPEARE, "text": "My lord"})
        self.ids["{read}"] = json.loads(created[2])["id"]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, bytes]:
        for mark, id in self.ids.items():
            path = path.replace(mark, id)
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.server.headers, **({"Content-Type": "application/json"} if data else {}), **headers}
        request = urllib.request.Request(self.server.address + path, data, headers, method=method)
        for _ in range(100):
            try:
                answer = urllib.request.urlopen(request, timeout=60)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                if answer.status != 202:  # the tile is not complete
                    return answer.status, answer.headers, answer.read()
            time.sleep(0.1)
        raise AssertionError(f"{path} did not become complete")

    def answer(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        if not self.ids:
            self.start()
        status, given_headers, content = self.ask(method, path, body, **headers)
        kind = given_headers["Content-Type"]
        given: dict[str, Any] = {"status": status, "type": kind}
        if given_headers["X-Shape"]:
            given |= {name: given_headers[name] for name in ("X-Shape", "X-Type", "X-Note") if given_headers[name]}
            letter = {"float32": "f", "float16": "e", "uint8": "B"}[given_headers["X-Type"]]
            numbers = struct.unpack(f"<{len(content) // struct.calcsize(letter)}{letter}", content)
            given["numbers"] = list(numbers)
        elif kind.startswith("application/json"):
            text = content.decode()
            for mark, id in self.ids.items():
                text = text.replace(id, mark)
            text = text.replace(self.server.address.partition("//")[2], "{server}")
            given["body"] = json.loads(text)
            if path == "/api/what-if":
                given["body"] = {key: x for key, x in given["body"].items() if key not in ("trace", "id")}
        return given


def http(folder: Path) -> Cases:
    viewer = Viewer()
    for name, path in GET.items():
        yield name, partial(viewer.answer, "GET", path)
    for name, (path, body) in POST.items():
        yield name, partial(viewer.answer, "POST", path, body)
    yield "no token", partial(viewer.answer, "GET", "/api/traces", Authorization="Bearer wrong")
    yield "another host", partial(viewer.answer, "GET", "/api/traces", Host="elsewhere.example")
    yield "another site", partial(viewer.answer, "GET", "/api/traces", Origin="http://elsewhere.example")
    viewer.closing.close()


# --- Commands --------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, list[str]] = {
    "version": ["--version"],
    "help": ["--help"],
    "recipes": ["recipes"],
    "one recipe": ["recipes", "luong-general-phrasebook"],
    "unknown recipe": ["train", "bahdanau-phrasebok"],
    "unknown key": ["train", "bahdanau-phrasebook", "training.update=3"],
    "translate": ["translate", SENTENCE, "--model", TATOEBA],
    "translate a file": ["translate", "--model", LUONG, "--file", "{folder}/words.txt", "--beams", "2"],
    "translate nothing": ["translate", "--model", "{folder}/nothing", SENTENCE],
    "generate": ["generate", "My lord", "--tokens", "40", "--seed", "1"],
    "classify": ["classify", "the food was not good", "the film was great"],
    "compare weights": ["classify", "--compare", "the food was not good"],
    "score": ["score", "Where is the library?", "Où est la bibliothèque ?"],
    "align": ["align", "--model", BAHDANAU, "he hit me with a pie", "il m' a entarté", "--links", "0-0 1-2"],
    "see": ["see", SHAKESPEARE, "My lord", "--layer", "1", "--head", "2", "--links", "4"],
    "patterns": ["patterns", SHAKESPEARE, "To be, or not to be"],
    "caption": ["caption", "scene:test:0:7", "--beams", "2"],
    "phrasebook": ["data", "phrasebook", "4", "--test", "--links"],
    "scenes": ["data", "scenes", "3"],
    "idf": ["data", "idf", "{folder}/words.txt"],
    "unknown option": ["see", SHAKESPEARE, "My lord", "--lair", "3"],
}  # fmt: skip


def command(arguments: list[str], folder: Path) -> dict[str, Any]:
    (folder / "words.txt").write_text("I am a student.\nHe hit me with a pie.\nI see a dog.\n", encoding="utf-8")
    done = run_command(*(word.replace("{folder}", str(folder)) for word in arguments))
    texts = {"out": done.stdout, "err": done.stderr}
    return {"code": done.returncode} | {
        name: [line.rstrip() for line in text.replace(str(folder), "{folder}").split("\n")]
        for name, text in texts.items()
    }


def commands(folder: Path) -> Cases:
    for name, arguments in COMMANDS.items():
        yield name, partial(command, arguments, folder)


KINDS = {"recipes": recipes, "traces": traces, "http": http, "commands": commands}

# --- Names -----------------------------------------------------------------------------------------------------------


def _imports(text: str) -> set[tuple[str, str]]:
    """(module, name) of each import of regard in the blocks of Python of a page; the name is "" for a module."""
    found = set()
    for statement in re.findall(r"^(?: *>>> )? *((?:from regard|import regard)[^\n]*)$", text, re.MULTILINE):
        try:
            node = ast.parse(statement).body[0]
        except SyntaxError:  # a sentence
            continue
        if isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.startswith("regard")}
    return found


def documented() -> list[tuple[str, str]]:
    """(module, name) of each import of regard in the documentation; the name is "" for a module."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for notebook in (ROOT / "docs").rglob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        texts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return sorted({name for text in texts for name in _imports(text)})


# --- Storing and comparing -------------------------------------------------------------------------------------------

LONG = 64
"""Numbers of a list that are stored; of a longer one, as many random sums of it."""


def compact(value: Any) -> Any:
    """Long lists of numbers become random sums of them, which change when one does; long texts their beginning."""
    if isinstance(value, dict):
        return {key: compact(x) for key, x in value.items()}
    if isinstance(value, list) and len(value) > LONG and (x := numbers(value)) is not None:
        signs = torch.cos(torch.arange(len(x), dtype=torch.float64) * torch.arange(1, 9).mul(0.37)[:, None])
        return {"count": len(x), "sums": [float(total) for total in signs @ torch.tensor(x, dtype=torch.float64)]}
    if isinstance(value, list):
        return [compact(x) for x in value]
    if isinstance(value, str) and len(value) > 2000:  # a picture, a sound
        return f"{value[:20]} …"
    return value


def numbers(value: list[Any]) -> list[float] | None:
    """The numbers of a list, if it holds nothing else."""
    return [float(x) for x in value] if all(type(x) in (int, float) for x in value) else None


DECIMAL = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")


def difference(now: Any, golden: Any, tolerance: float, at: str = "") -> str | None:
    """Where two values differ, or None. Numbers may by `tolerance`, decimals in a text as `_near` says."""
    if isinstance(golden, dict) and isinstance(now, dict):
        if now.keys() != golden.keys():
            return f"{at}: keys {sorted(now)} for {sorted(golden)}"
        differing = (difference(now[key], golden[key], tolerance, f"{at}.{key}") for key in golden)
        return next((x for x in differing if x), None)
    if isinstance(golden, list) and isinstance(now, list):
        if len(now) != len(golden):
            return f"{at}: {len(now)} entries for {len(golden)}: {now!r:.300}"
        differing = (
            difference(a, b, tolerance, f"{at}[{n}]") for n, (a, b) in enumerate(zip(now, golden, strict=True))
        )
        return next((x for x in differing if x), None)
    if type(now) in (int, float) and type(golden) in (int, float):
        near = (
            now == golden or abs(now - golden) <= tolerance * max(1.0, abs(golden)) or (now != now and golden != golden)
        )
        # an answer that was rounded may differ by one in the last place
        near = near or (len(repr(golden).partition(".")[2]) > 3 and _near(repr(float(now)), repr(golden)))
        return None if near else f"{at}: {now!r} for {golden!r}"
    if isinstance(now, str) and isinstance(golden, str) and now != golden:
        a, b = DECIMAL.findall(now), DECIMAL.findall(golden)
        near = DECIMAL.sub("#", now) == DECIMAL.sub("#", golden) and len(a) == len(b)
        near = near and all(_near(x, y) for x, y in zip(a, b, strict=True))
        return None if near else f"{at}: {now!r} for {golden!r}"
    return None if now == golden else f"{at}: {now!r:.300} for {golden!r:.300}"


def _near(now: str, golden: str) -> bool:
    """Whether two decimals of a text differ by one in the last place, or are both errors of rounding."""
    digits, _, exponent = golden.partition("e")
    place = float(f"1e{int(exponent or 0) - len(digits.partition('.')[2])}")
    a, b = float(now), float(golden)
    return abs(a - b) < 1.5 * place or (golden.find("e-") > 0 and max(abs(a), abs(b)) < 1e-5)
