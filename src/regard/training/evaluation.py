"""Evaluating a model: translations, perplexity, labels, captions; alignments by forced decoding beside gold links."""

from __future__ import annotations

import math
import time
import tomllib
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from ..data.batches import Batches
from ..data.corpora import scenes
from ..data.encoding import EncodedCorpus
from ..data.rows import PairReader
from ..data.tokenizer_pair import UnknownLabelError
from ..decoding.translation import translate
from ..models.encoder_decoder import EncoderDecoder
from ..seeing.align import alignment_error_rate, best_links, join_pieces, merge_pieces, parse_links, pointing_hits
from ..special_tokens import END, UNKNOWN
from ..wording import count_of
from . import scores
from .corpora import read, running
from .run_folder import RECIPE, Run
from .scores import LabelScore, by_label, copy_recall
from .tasks import recipe_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Unpack

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..data.batches import Batch
    from ..data.rows import Column, Pair
    from ..data.tokenizer import Tokenizer
    from ..data.tokenizer_pair import TokenizerPair
    from ..decoding.beam import SearchSettings
    from ..decoding.model_folders import Pretrained
    from ..decoding.translation import Engine
    from ..models.configurations import TaskName
    from ..seeing.align import Links
    from .scores import LengthBin, Score
    from .tasks import Task


def text_words(tokenizer: Tokenizer, text: str) -> tuple[list[str], list[str]]:
    """The words of a text as the tokenizer splits them, and those it does not know."""
    ids = tokenizer.encode(text)
    numbers = tokenizer.words(ids)
    words = join_pieces(numbers, tokenizer.pieces(ids)) if ids else []
    spaced = text.split()
    unknown = sorted({number for number, id in zip(numbers, ids, strict=True) if id == UNKNOWN})
    if len(spaced) == len(words):  # an unknown word is shown as it was written
        words = [spaced[n] if n in unknown else word for n, word in enumerate(words)]
    return words, [words[n] for n in unknown]


def gold_links(pair: Pair, tokenizers: TokenizerPair) -> tuple[Links | None, Links]:
    """The sure links of a pair, None if it has none, and the possible ones.

    Links count the words between spaces. A tokenizer that splits punctuation may count others, so both counts must
    agree: otherwise a link would be read against another word than the one it was written for.
    """
    sure = None if pair.alignment is None else parse_links(pair.alignment)
    possible = parse_links(pair.possible)
    if sure is None and not possible:
        return sure, possible
    sizes = []
    for name, tokenizer, text in (
        ("source", tokenizers.source, pair.source),
        ("target", tokenizers.target, pair.target),
    ):
        words, spaced = text_words(tokenizer, text)[0], text.split()
        if len(words) != len(spaced):
            numbered = " ".join(f"{number}:{word}" for number, word in enumerate(words))
            raise ValueError(
                f"{pair.where or 'the pair'} has gold links, and its {name} has {count_of(len(spaced), 'word')} "
                f"between spaces but {count_of(len(words), 'word')} of the model: {numbered} – write the {name} with "
                "these words separated by spaces, and number the links by them"
            )
        sizes.append(len(words))
    for i, j in sorted((sure or set()) | possible):
        if i >= sizes[0] or j >= sizes[1]:
            raise ValueError(
                f"link {i}-{j} is outside {pair.where or 'the pair'}, which has {count_of(sizes[0], 'word')} and "
                f"{count_of(sizes[1], 'word')}: {pair.source} / {pair.target}"
            )
    return sure, possible


@dataclass
class TranslationEvaluation:
    """What `regard evaluate` prints and a run's results.json keeps."""

    sentences: int
    bleu: Score
    tokenised_bleu: Score  # of the words that spaces separate; what papers on tokenised text report
    chrf: Score
    perplexity: float | None  # per token of the model's own vocabulary, </s> counted; None of an engine not ours
    aer: dict[str, float]  # by layer of attention; empty without gold links or without attention
    by_length: list[LengthBin]
    tokens_per_second: float  # of translations, </s> counted
    seconds: float  # for translating all sentences
    search: dict[str, Any]
    copied: float | None = None  # share of the unknown words to copy that were copied; None where there are none

    @property
    def best_aer(self) -> float | None:
        return min(self.aer.values(), default=None)


def evaluate_translation(
    model: EncoderDecoder | Engine,
    tokenizers: TokenizerPair,
    pairs: Iterable[Pair],
    *,
    tokens: int | None = None,
    tokenised: bool = False,
    **how: Unpack[SearchSettings],
) -> tuple[TranslationEvaluation, list[str]]:
    """The scores of a model on these pairs, and its translations.

    `tokenised` says that the text of the pairs is tokenised, for BLEU by length. Another engine than our models has
    neither perplexity nor AER. `how` are the keywords of `search`.
    """
    pairs = list(pairs)
    if not pairs:
        raise ValueError("there are no pairs to evaluate on")
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    own = model if isinstance(model, EncoderDecoder) else None
    linked = [pair for pair in pairs if pair.alignment is not None]
    if own and own.config.decoder.attends:
        for pair in linked:  # before the translation, which takes long
            gold_links(pair, tokenizers)
    began = time.perf_counter()
    translations = list(translate(model, tokenizers, sources, tokens=tokens, window=len(pairs), **how))
    seconds = time.perf_counter() - began
    written = sum(len(translation.hypotheses[0].tokens) + 1 for translation in translations)
    texts = [translation.text for translation in translations]
    evaluation = TranslationEvaluation(
        sentences=len(pairs),
        bleu=scores.bleu(texts, references),
        tokenised_bleu=scores.bleu(texts, references, tokenised=True),
        chrf=scores.chrf(texts, references),
        perplexity=perplexity(own, tokenizers, pairs) if own else None,
        aer=alignment_errors(own, tokenizers, linked) if own else {},
        by_length=scores.by_length(sources, texts, references, tokenised=tokenised),
        tokens_per_second=written / seconds,
        seconds=seconds,
        search={name: value for name, value in how.items() if value is not None},
        copied=copy_recall(texts, pairs, tokenizers),
    )
    return evaluation, texts


@torch.no_grad()
def perplexity(model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Iterable[Pair], *, tokens: int = 4096) -> float:
    """exp(−Σ log p(y_t | y_<t, x) / T), over every token of every target, </s> counted."""
    loss = count = 0.0
    for batch in forced_batches(model, tokenizers, pairs, tokens):
        batch_loss = model.loss(batch)
        loss, count = loss + float(batch_loss.nll), count + float(batch_loss.tokens)
    try:
        return math.exp(loss / count)
    except OverflowError:  # past 709 nats a token
        return math.inf


def alignment_errors(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: list[Pair], *, tokens: int = 4096
) -> dict[str, float]:
    """The AER of each attention layer, where a target word is linked to the source word with its largest weight.

    The reference is the input (forced decoding); heads are averaged. Empty without attention or without pairs.
    """
    links_by_layer: dict[str, list[Links]] = {}
    for weights in alignments(model, tokenizers, pairs, tokens=tokens):
        for number, layer in enumerate(weights, 1):
            name = f"layer {number}" if len(weights) > 1 else "attention"
            links_by_layer.setdefault(name, []).append(best_links(layer))
    if not links_by_layer:
        return {}
    gold = [gold_links(pair, tokenizers) for pair in pairs]
    sure, possible = [links or set() for links, _ in gold], [links for _, links in gold]
    return {name: alignment_error_rate(links, sure, possible) for name, links in links_by_layer.items()}


@torch.no_grad()
def alignments(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: list[Pair], *, tokens: int = 4096
) -> list[Tensor]:
    """Attention weights with forced decoding of each reference: [layers, target words, source words] per pair."""
    weights_by_row: list[Tensor | None] = [None] * len(pairs)
    for batch in forced_batches(model, tokenizers, pairs, tokens):
        weights = model(batch.source, batch.source_lengths, batch.target[:, :-1], weights=True).weights
        if weights is None:
            return []
        layers = getattr(model.config.decoder, "layers", 1) if weights.shape[1] > 1 else 1
        weights = weights.unflatten(1, (layers, -1)).mean(2).float().cpu()  # [batch, layers, target, places]
        for i, row in enumerate(batch.rows.tolist()):
            target = tokenizers.target.words(batch.target[i, 1 : batch.target_lengths[i] - 1].tolist())
            source = tokenizers.source.words(batch.source[i, : batch.source_lengths[i] - 1].tolist())
            weights_by_row[row] = merge_pieces(weights[i], target, source)
    return [weights for weights in weights_by_row if weights is not None]


def forced_batches(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Iterable[Pair], tokens: int = 4096
) -> Iterator[Batch]:
    """Batches of similar length on the model's device, `rows` numbered from 0; the model is in evaluation mode."""
    encoded = EncodedCorpus.build([replace(pair, row=row) for row, pair in enumerate(pairs)], tokenizers)
    widest = int(encoded.widths.max(initial=1))
    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        for batch in Batches(encoded, tokens=max(tokens, widest)):
            yield batch.to(device)
    finally:
        model.train(training)


ROWS: dict[TaskName, str] = {
    "translate": "pairs",
    "write": "text",
    "classify": "{source}s and labels",
    "caption": "pictures and captions",
    "spell": "sounds and spellings",
}
"""What a file holds that a task is evaluated on."""


@dataclass
class TaskEvaluation:
    """Scores of a model that does not translate, as printed by `regard evaluate` and kept in results.json."""

    task: str
    items: int
    values: dict[str, float]
    amount: str = ""  # the number of items, in the units of the task
    search: dict[str, Any] = field(default_factory=dict)  # empty without a search
    labels: dict[str, LabelScore] = field(default_factory=dict)  # of a classifier: the scores of each label


@torch.no_grad()
def evaluate_task(
    task: Task, model: Any, tokenizers: TokenizerPair, pairs: Iterable[Pair]
) -> tuple[TaskEvaluation, list[str]]:
    """The scores of a model in evaluation mode, and its output for each source."""
    pairs = [replace(pair, row=row) for row, pair in enumerate(pairs)]
    if not pairs:
        raise ValueError("there are no pairs to evaluate on")
    try:
        encoded = EncodedCorpus.build(pairs, tokenizers)
    except UnknownLabelError as error:
        advice = "correct the label, or remove the row"
        if pairs[0].target not in tokenizers.target.names:
            advice += "; if the first line is a header, or texts and labels are in other columns, say so with --columns"
        raise ValueError(f"{error}; {advice}") from None
    if task.name != "write":  # running text is cut into windows
        _require_short(encoded, pairs, tokenizers.source.kind, task.recipe.data.longest)
    nll, count = task.loss_sums(model, encoded).tolist()
    answers = task.answers(model, tokenizers, pairs)
    values = task.figures(answers, pairs, nll / count, model, tokenizers)
    search = task.recipe.search.to_dict() if task.searches else {}
    labels = by_label(answers, pairs, tokenizers.target.names) if task.name == "classify" else {}
    return TaskEvaluation(task.name, len(pairs), values, task.amount(encoded), search, labels), answers


def _require_short(encoded: EncodedCorpus, pairs: list[Pair], kind: str, longest: int) -> None:
    """Raise an error that names the first row beyond data.longest; `kind` is that of the source's reader."""
    too_long = np.flatnonzero(encoded.widths > longest)
    if not len(too_long):
        return
    first = too_long[0]
    width, row = int(encoded.widths[first]), pairs[int(encoded.rows[first])]
    if encoded.target_lengths[first] - 1 == width:
        side = f"the target has {count_of(width, 'token')}"
    elif kind == "sound":
        side = f"the sound has {count_of(width, 'frame')} of 10 ms"
    else:
        side = f"the text has {count_of(width, 'token')}"
    others = f" ({len(too_long):,} rows are too long)" if len(too_long) > 1 else ""
    raise ValueError(
        f"{row.where or f'row {row.row + 1}'}: {side}, and the model was trained on at most {longest:,} "
        f"(data.longest): shorten it, or remove the row{others}"
    )


def parse_columns(columns: str | None) -> tuple[Column, ...]:
    """Columns as the command line has them, numbers or names; the first two if there are none."""
    if columns is None:
        return 0, 1
    return tuple(int(name) if name.strip().isdecimal() else name.strip() for name in columns.split(","))


def pairs_of_file(file: Path, task: str, columns: tuple[Column, ...]) -> list[Pair]:
    """The pairs of a file; for a language model, its text."""
    if task == "write":
        return list(running(file))
    if pairs := list(PairReader(file, columns=columns)):
        return pairs
    raise ValueError(f"{file} holds no rows, so there is nothing to evaluate on")


def default_columns(loaded: Pretrained, file: Path) -> tuple[Column, ...]:
    """Those that the run was trained with, by name or number, where the file has them too; else the first two.

    A file without the run's columns of links still has those of its sources and targets.
    """
    columns = trained_columns(loaded)
    for chosen in dict.fromkeys([columns, columns[:2]]):
        if _has_columns(file, chosen):
            return chosen
    return 0, 1


def trained_columns(loaded: Pretrained) -> tuple[Column, ...]:
    """Those of the run's recipe; the first two where it has none."""
    recipe = None if loaded.run is None else loaded.run / RECIPE
    if recipe is None or not recipe.is_file():
        return 0, 1
    # The file alone, since a recipe whose corpora are gone can be evaluated on others.
    try:
        data = tomllib.loads(recipe.read_text(encoding="utf-8")).get("data")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{recipe} is not a recipe: {error}. Say which columns to read with --columns") from error
    columns = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(columns, list) or not all(isinstance(column, int | str) for column in columns):
        return 0, 1
    return tuple(columns)


def _has_columns(file: Path, columns: tuple[Column, ...]) -> bool:
    """Whether the header of a file has these names, or its first row these numbers."""
    try:
        reader = PairReader(file, columns=columns, on_bad="skip")
        list(reader.check_rows(islice(reader.rows(), 1)))
    except ValueError:
        return False
    # A column that only a number leads to may hold something else than links.
    unfit = ("missing column", "bad links") if isinstance(columns[0], int) else ("missing column",)
    return not any(kind in reader.reasons for kind in unfit)


def pairs_of_run(
    loaded: Pretrained, split: Literal["test", "valid"] | None = None
) -> tuple[list[Pair], bool, Literal["test", "valid"]]:
    """The pairs of a split of the run's recipe, whether their text is tokenised, and which split it is.

    By default the test split; of running text that has none, the one that validated.
    """
    if loaded.run is None:
        raise ValueError(f"{loaded.folder} is a model without a recipe: say which FILE of pairs to evaluate on")
    recipe = Run.open(loaded.run).recipe
    chosen = split or "test"
    if split is None and recipe.data.kind == "text" and not recipe.data.tested:
        chosen = "valid"
    if pairs := list(read(recipe.data, chosen, recipe.source.kind)):
        return pairs, recipe.data.tokenised, chosen
    other: Literal["test", "valid"] = "valid" if chosen == "test" else "test"
    advice = f"give a FILE of {ROWS[loaded.model.task].format(source=recipe.source.kind)}"
    try:
        if next(iter(read(recipe.data, other, recipe.source.kind)), None) is not None:
            advice = f"use --split {other}, or {advice}"
    except (OSError, ValueError):  # the other split cannot be read: no advice, and not what was asked
        pass
    raise ValueError(f"there is nothing to evaluate on: the recipe's data.{chosen} is empty; {advice}")


def evaluate_loaded(
    loaded: Pretrained, pairs: list[Pair], settings: SearchSettings, *, tokens: int | None, tokenised: bool
) -> tuple[TranslationEvaluation | TaskEvaluation, list[str]]:
    """The scores of a model on these pairs, and its output for each source."""
    if loaded.model.task == "translate":
        return evaluate_translation(
            loaded.model, loaded.tokenizers, pairs, tokens=tokens, tokenised=tokenised, **settings
        )
    assert loaded.run is not None
    recipe = Run.open(loaded.run).recipe
    recipe = recipe.with_settings("search", **settings)
    return evaluate_task(recipe_task(recipe), loaded.model, loaded.tokenizers, pairs)


@torch.no_grad()
def step_by_step_nll(model: EncoderDecoder, windows: Int[Tensor, "rows tokens"]) -> float:
    """−log p per token; a step sees the tokens before it only, also where the model was trained without a mask."""
    rows, count = windows.shape
    one = windows.new_ones(rows)
    state = model.decoder.start(model.encode(one[:, None], one), steps=count)
    total = 0.0
    for at in range(count - 1):
        features, state, _ = model.decoder.step(windows[:, at], state)
        log_p = torch.log_softmax(model.decoder.readout(features).double(), -1)
        total -= float(log_p.gather(1, windows[:, at + 1, None]).sum())
    return total / (rows * (count - 1))


@dataclass(frozen=True)
class ForcedAlignment:
    """The words of a pair and the weights between them; `sure` and `possible` are gold links, None if not given."""

    source: list[str]
    target: list[str]
    weights: Float[Tensor, "target source"]
    unknown: list[str]
    """Words that the model's vocabularies do not have."""
    sure: Links | None
    possible: Links

    @property
    def links(self) -> Links:
        """Each target word with the source word of its largest weight."""
        return best_links(self.weights)


def force_align(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: list[Pair], layer: int | None = None
) -> list[ForcedAlignment]:
    """The alignment of each pair. `layer` counts attention layers from 0; None takes their mean."""
    for pair in pairs:
        if not pair.source.strip() or not pair.target.strip():
            raise ValueError(f"{pair.where or 'the pair'} has an empty side; an alignment needs a source and a target")
    gold = [gold_links(pair, tokenizers) for pair in pairs]
    made = []
    for pair, (sure, possible), weights in zip(pairs, gold, alignments(model, tokenizers, pairs), strict=False):
        if layer is not None and layer >= len(weights):
            raise ValueError(
                f"layer is {layer}, and this model has {count_of(len(weights), 'layer')} of attention, from 0"
            )
        source, unknown_source = text_words(tokenizers.source, pair.source)
        target, unknown_target = text_words(tokenizers.target, pair.target)
        mean = weights.mean(0) if layer is None else weights[layer]
        made.append(ForcedAlignment(source, target, mean, unknown_source + unknown_target, sure, possible))
    if not made:
        raise ValueError("this model has no attention, so it aligns nothing; give one that attends to the source")
    return made


def error_rate(made: list[ForcedAlignment]) -> float | None:
    """The alignment error rate over the pairs with gold links; None where there are none."""
    gold = [alignment for alignment in made if alignment.sure is not None]
    if not gold:
        return None
    links = [alignment.links for alignment in gold]
    return alignment_error_rate(links, [x.sure or set() for x in gold], [x.possible for x in gold])


@torch.no_grad()
def pointing(model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> float | None:
    """The share, in percent, of the words with a place whose place gets the largest weight (`pointing_hits`).

    The true captions are the input. The maps of a Transformer are averaged. None for a model without attention.
    """
    hits = total = 0
    for batch in forced_batches(model, tokenizers, pairs, tokens=512):
        decoded = model(batch.source, batch.source_lengths, batch.target[:, :-1], weights=True)
        if decoded.weights is None:
            break
        maps = decoded.weights.float().mean(1).cpu()  # [batch, target, places]
        side = round(maps.shape[-1] ** 0.5)
        for row, looks, target in zip(batch.rows.tolist(), maps, batch.target.tolist(), strict=True):
            words = scenes.scene(pairs[row].source).words
            pieces = tokenizers.target.words([i for i in target if i > END])
            looks = merge_pieces(looks, pieces, range(looks.shape[-1]))  # from pieces to words
            batch_hits = pointing_hits(looks[: len(words)], (side, side), [word.boxes for word in words])
            hits, total = hits + batch_hits[0], total + batch_hits[1]
    return 100 * hits / total if total else None
