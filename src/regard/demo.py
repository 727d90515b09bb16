"""The demo: worked examples of attention, two translators that ship, and the training of another."""

from __future__ import annotations

import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from .attention import attend
from .attention.attend import lookup
from .attention.energies import Dot, InverseDistance
from .attention.masks import causal
from .attention.normalizers import Proportional
from .decoding import model_folders
from .decoding.translation import translate
from .files import write_text
from .seeing.align import translation_word_weights
from .seeing.terminal import heatmap, to_svg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float
    from rich.console import RenderableType
    from torch import Tensor

    from .training.evaluation import TranslationEvaluation

WIDTH = 80
ACCENT = "bold #159a8c"  # readable on dark and light terminals


def section(name: str, formula: str, body: RenderableType, caption: str = "") -> RenderableType:
    rule = Rule(Text.assemble((name, ACCENT), f"   {formula}"), align="left", style="dim")
    below = ["", caption] if caption else []
    return Group(rule, Padding(Group(body, *below), (1, 0, 1, 2), expand=False))


def table(*columns: str) -> Table:
    table = Table(
        *columns,
        box=box.SIMPLE_HEAD,
        header_style="dim",
        border_style="dim",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def beside(left: RenderableType, right: RenderableType) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_row(left, right)
    return grid


def answer(text: str) -> Text:
    return Text(text, style=ACCENT)


WORDS = ["The", "early", "bird", "catches", "the", "worm"]
FEATURES = ["animal", "action", "time", "article"]
# One row per word, made by hand: how much of an animal, an action, a time and an article it is.
EMBEDDINGS = [
    [0.0, 0.0, 0.0, 1.0],
    [0.9, 0.0, 1.6, 0.0],
    [1.5, 0.4, 0.2, 0.0],
    [0.7, 1.6, 0.1, 0.0],
    [0.0, 0.0, 0.0, 1.0],
    [1.2, 0.5, 0.0, 0.0],
]
EARLY, BIRD = WORDS.index("early"), WORDS.index("bird")


def example_sections() -> Iterator[RenderableType]:
    """All sections in order, each computed when it is reached."""
    yield Text.assemble(
        ("z = normalize(energy(q, k)) · v", ACCENT), "\nEverything below is this one line with other parts.\n"
    )
    yield dictionary()
    yield boxes()
    yield self_attention()
    yield masked()
    yield heads()
    yield against_feed_forward()
    yield long_context()


def dictionary() -> RenderableType:
    phones = {"Alice Johnson": "555-1234", "Bob Smith": "555-5678", "Carol Davis": "555-8765"}
    record = {"Name": "Jane Doe", "Date of birth": "May 5th 2000", "Place of birth": "Hull"}
    rows = table("table", "query", "answer")
    rows.add_row("phone directory", "Bob Smith", answer(lookup("Bob Smith", phones)))
    rows.add_row("phone directory", "Di Jones", answer(lookup("Di Jones", phones, default="not listed")))
    rows.add_row("Jane Doe's record", "Date of birth", answer(lookup("Date of birth", record)))
    return section("A dictionary", "energy = 1 where q = k, else 0", rows)


def boxes() -> RenderableType:
    sizes, pounds = torch.tensor([[300.0], [400.0]]), torch.tensor([[30.0], [40.0]])
    queries = torch.tensor([[360.0], [325.0], [300.0]])
    weighed, weights = attend(queries, sizes, pounds, energy=InverseDistance(), normalize=Proportional(), weights=True)
    rows = table("size", *(f"like the box of {size:g}" for size in sizes.flatten().tolist()), "weighs")
    for size, row, pound in zip(queries, weights.dense(), weighed, strict=True):
        shares = [
            f"{Fraction(share).limit_denominator(100)} × {weight:g} lb"
            for share, weight in zip(row.tolist(), pounds.flatten().tolist(), strict=True)
        ]
        rows.add_row(f"{size.item():g}", *shares, answer(f"{pound.item():.1f} lb"))
    return section("Boxes", "energy = 1/|q − k|, weights in proportion to it", rows)


def self_attention() -> RenderableType:
    x = torch.tensor(EMBEDDINGS)
    composite, weights = attend(x, x, x, energy=Dot(), weights=True)
    rows = table('"bird"', "alone", "here")
    for feature, alone, here in zip(FEATURES, x[BIRD].tolist(), composite[BIRD].tolist(), strict=True):
        rows.add_row(feature, f"{alone:.2f}", answer(f"{here:.2f}"))
    return section(
        "Self-attention",
        "a_ij = softmax_j(x_i·x_j), A_i = Σ_j a_ij x_j",
        beside(heatmap(weights.dense(), WORDS, WORDS), rows),
        'Beside it, "bird" before and after: it took time from "early" and action from '
        '"catches". The embeddings are our own, made by hand.',
    )


def masked() -> RenderableType:
    x = torch.tensor(EMBEDDINGS)
    _, weights = attend(x, x, x, energy=Dot(), mask=causal(), weights=True)
    return section(
        "Masked attention",
        "e_ij = −∞ for j > i",
        heatmap(weights.dense(), WORDS, WORDS),
        "No word sees the words after it. A dot is exactly 0.",
    )


def heads() -> RenderableType:
    x, (to_q, to_k, to_v) = _random(len(WORDS), 512), _random(3, 512, 512) / 512**0.5
    q, k, v = ((x @ to).reshape(len(x), 8, -1).transpose(0, 1) for to in (to_q, to_k, to_v))  # [heads, words, 64]
    z, weights = attend(q, k, v, weights=True)
    best = weights.rows(BIRD).top(1)
    rows = table("head", *map(str, range(1, 9)))
    rows.add_row('"bird" sees', *(WORDS[index] for index in best.indices.flatten()))
    rows.add_row("with weight", *(f"{value:.2f}" for value in best.values.flatten()))
    return section(
        "Eight heads",
        "head_h = attend(x Q_h, x K_h, x V_h)",
        rows,
        f"Random projections. The outputs are {' × '.join(map(str, z.shape))}; side by side, 6 × 512.",
    )


def against_feed_forward() -> RenderableType:
    x = torch.tensor(EMBEDDINGS)
    late = x.clone()
    late[EARLY, FEATURES.index("time")] *= -1  # "late"
    up, down = _random(2, 4, 4)
    change = torch.stack(
        [
            (attend(late, late, late) - attend(x, x, x)).norm(dim=-1),
            ((late @ up).relu() @ down - (x @ up).relu() @ down).norm(dim=-1),
        ]
    )
    return section(
        "Beside a feed-forward layer",
        "A_i = Σ_j a_ij(x) x_j   against   relu(x_i U) W",
        heatmap(change, ["self-attention", "feed-forward"], WORDS),
        'How far each output moves when "early" becomes "late". Attention computes its '
        "weights from the input, so all move; fixed weights move that one alone.",
    )


def long_context() -> RenderableType:
    length, cells, query, needle = 8192, 16, 7700, 1234
    # Sinusoids of 32 frequencies encode positions, so that each token attends to itself and its neighbours; one query
    # has the position of a token far back.
    time = torch.arange(length)[:, None] * (2 * torch.pi / torch.logspace(1, 4, 32))
    k = 3 * torch.cat([time.cos(), time.sin()], dim=-1)
    q = k.clone()
    q[query] = k[needle]
    z, weights = attend(q, k, k, mask=causal(), weights=True)
    top = weights.rows(query).top(3)
    best = [f"{j}: {w:.2f}" for j, w in zip(top.indices[0].tolist(), top.values[0].tolist(), strict=True)]
    memory = q.nbytes + k.nbytes + 4 * length  # queries, keys, and one number per row
    facts = table("asked of Weights", "answer")
    facts.add_row(f"rows({query}).top(3)", answer("\n".join(best)))
    facts.add_row("entropy().mean()", answer(f"{weights.entropy().mean():.2f} nats"))
    facts.add_row("fidelity(v, z)", answer(f"{weights.fidelity(k, z):.0e}"))
    facts.add_row("memory it keeps", answer(f"{memory / 1e6:.0f} MB"))
    facts.add_row("the matrix takes", answer(f"{4 * length**2 / 1e6:.0f} MB"))
    ticks = [f"{at * length // cells}" for at in range(cells)]
    return section(
        f"{length} tokens",
        f"{length} × {length} weights, none of them stored",
        beside(heatmap(weights.map((cells, cells)), ticks, [""] * cells), facts),
        f"Each cell is the largest of {length // cells} × {length // cells} weights. The lone one is query {query}, "
        f"which was made to look for key {needle}.",
    )


def _random(*shape: int) -> Float[Tensor, "..."]:
    # A generator of its own: every section shows the same numbers whatever ran before it.
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


MODELS = {"Bahdanau 2014": "tatoeba-bahdanau-en-fr", "Transformer 2017": "tatoeba-transformer-en-fr"}
SENTENCES = [
    "Where is the library?",
    "My brother bought a small white house near the sea.",
    "I would have called you if I had known that you were here.",
]


def translation_sections() -> Iterator[RenderableType]:
    rows = table("English", *MODELS)
    for column in rows.columns:
        column.justify = "left"
        column.overflow = "fold"
    translations = {}
    for name, shipped in MODELS.items():
        loaded = model_folders.load(shipped)
        translations[name] = list(translate(loaded.model, loaded.tokenizers, SENTENCES, weights=True))
    for number, sentence in enumerate(SENTENCES):
        rows.add_row(sentence, *(answer(translations[name][number].text) for name in MODELS), end_section=True)
    yield section(
        "Two translators",
        "encoder → annotations → attention → decoder",
        rows,
        "Both were trained on sentences from tatoeba.org (CC BY 2.0) and came with the package.",
    )
    weights, target, source = translation_word_weights(translations["Bahdanau 2014"][1])
    yield section(
        "Where Bahdanau's model looks",
        "w_t = softmax_j(v·tanh(W s_{t−1} + U h_j))",
        heatmap(weights, target, source),
        "Each row is a word it writes, each column one it reads. The training data do not say which belong together.",
    )
    yield Text('Try it: regard translate --show --model tatoeba-bahdanau-en-fr "A sentence."\n', style="bold")


RECIPES = {"one context vector": "seq2seq-phrasebook", "attention (Bahdanau)": "bahdanau-phrasebook"}


def training_sections() -> Iterator[RenderableType]:
    try:
        import pydantic  # noqa: F401
    except ModuleNotFoundError:
        yield Text("Next, a translator would be trained: pip install 'regard[train]'", style="bold")
        return
    from .training import recipe_files
    from .training.corpora import read
    from .training.evaluation import evaluate_translation
    from .training.fitting import fit

    yield Text("Two translators are trained on 20,000 sentences of a generated English-French phrase book.\n")
    scored: dict[str, tuple[TranslationEvaluation, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe_name in RECIPES.items():
            yield Text(f"{name}: regard train {recipe_name}", style="bold")
            recipe = recipe_files.load_recipe(recipe_name, [])
            start = time.perf_counter()
            run = fit(recipe, Path(folder) / recipe_name)
            seconds = time.perf_counter() - start
            loaded = model_folders.load(run.folder)
            unseen = list(read(recipe.data, "test"))
            scored[name] = evaluate_translation(loaded.model, loaded.tokenizers, unseen, **loaded.search)[0], seconds
    rows = table("1,000 unseen sentences", *scored)
    results = [result for result, _ in scored.values()]
    rows.add_row("BLEU", *(answer(f"{r.bleu.value:.1f}") for r in results))
    errors = ["–" if r.best_aer is None else f"{r.best_aer:.2f}" for r in results]
    rows.add_row("AER, against gold links", *map(answer, errors))
    for bins in zip(*(r.by_length for r in results), strict=True):
        rows.add_row(f"BLEU, {bins[0].name} words", *(f"{bin.bleu:.1f}" for bin in bins))
    rows.add_row("seconds to train", *(f"{seconds:.0f}" for _, seconds in scored.values()))
    yield section(
        "What attention adds",
        "one vector per sentence, or one context per word",
        rows,
        "One vector of fixed size cannot hold a long sentence; attention reads the source again.",
    )
    yield Text(
        "Next: `regard train transformer-phrasebook`, `regard recipes`, `regard translate --help`;\n"
        "docs/tour.md walks from the formula to the models in code.",
        style="bold",
    )


def show(*, quick: bool = False) -> None:
    """Print the demo, each section as soon as it is computed; `quick` leaves out the training."""
    console = Console(markup=False, highlight=False)
    # A narrower terminal wraps the lines, which is better than tables squeezed to nothing.
    console.width = max(WIDTH, min(console.width, 100))
    for sections in (example_sections, translation_sections, *(() if quick else (training_sections,))):
        for section in sections():
            console.print(section)


def save(path: Path) -> None:
    """Write the sections on boxes and self-attention as SVG."""
    if path.suffix != ".svg":
        raise ValueError(f"the picture is an SVG: give {path} a name that ends in .svg")
    write_text(path, to_svg(Group(boxes(), self_attention()), WIDTH))
