"""Greedy and beam search, and sampling: from annotations to the best hypotheses of every sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypedDict

import torch

from ..data.batch import BEGIN, END, PAD, UNKNOWN
from ..layers import packed_weights
from ..models.decoders.decoder import Decoder
from .beam_state import Beam, History, Hypothesis, Ranking
from .beam_step import BeamLoop
from .constraints.constrained_search import constrained_search
from .search_graphs import STEPS, graphs_of, recordable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from jaxtyping import Int
    from torch import Tensor

    from ..models import EncoderDecoder
    from ..models.annotations import Annotations
    from ..models.decoders.decoder import State
    from .beam_step import BeamStep
    from .ensemble import Ensemble
    from .sampling import Sample

LONGEST = 256  # tokens of a hypothesis, unless the caller says otherwise


class SearchSettings(TypedDict, total=False):
    """The keyword arguments of `search`."""

    beams: int
    length_penalty: float
    coverage_penalty: float
    longest: int | None
    best: int
    sample: Sample | None
    weights: bool | Literal["first"]
    prefixes: Sequence[Sequence[int]] | None
    phrases: Sequence[Sequence[Sequence[int]]] | None


@torch.no_grad()
def search(
    model: EncoderDecoder | Ensemble | Decoder[Any],
    annotations: Annotations,
    *,
    beams: int = 5,
    length_penalty: float = 1.0,
    coverage_penalty: float = 0.0,
    longest: int | None = None,
    best: int = 1,
    sample: Sample | None = None,
    weights: bool | Literal["first"] = False,
    prefixes: Sequence[Sequence[int]] | None = None,
    phrases: Sequence[Sequence[Sequence[int]]] | None = None,
) -> list[list[Hypothesis]]:
    """argmax_y log p(y | x) / lp(y) + cp(x, y), as far as a beam finds it: for every sentence its `best`, best first.

    - `beams`: hypotheses kept alive per sentence; 1 is greedy search. With `sample`, how many are drawn.
    - `length_penalty`, `coverage_penalty`: α and β of Wu et al. 2016, see `Ranking`.
    - `longest`: tokens a hypothesis may have before </s>; unless given, twice the source's places and ten, up to 256.
      One that gets there is ended. Never more than the decoder has positions for.
    - `weights=True` also gives each hypothesis the weights over the source it was made with; "first" gives them to the
      best of each sentence alone, with as much less memory.
    - `prefixes`: for each sentence, the tokens that every hypothesis begins with. They count in its score.
    - `phrases`: for each sentence, phrases (lists of tokens) that every hypothesis contains, see `constrained_search`.

    What a sentence gets does not depend on the others in the batch. The model must be in evaluation mode.
    """
    decoder: Decoder[Any] = model if isinstance(model, Decoder) else model.decoder
    if beams < 1 or not 1 <= best <= beams:
        raise ValueError(f"a search needs beams ≥ 1 and 1 ≤ best ≤ beams, got beams={beams} and best={best}")
    if decoder.training:
        raise ValueError("search needs the model in evaluation mode (dropout is random): call model.eval() first")
    if len(annotations.lengths) == 0:
        return []
    most, device, places = limits(annotations.lengths, longest, decoder.most_steps), annotations.vectors.device, None
    starts = _checked_prefixes(prefixes, len(most), decoder)
    if phrases is not None:
        _check_phrases(phrases, len(most), decoder)
    if phrases is not None and any(phrases):
        if sample is not None or coverage_penalty:
            raise ValueError("a search for given phrases neither samples nor counts coverage; leave out one of them")
        ranking = Ranking(length_penalty)
        hypotheses = constrained_search(
            decoder, annotations, phrases, starts, most.tolist(), ranking, beams=beams, best=best
        )
        if weights:
            _add_weights(decoder, annotations, hypotheses, first=weights == "first")
        return hypotheses
    most = torch.maximum(most, most.new_tensor([len(start) for start in starts]))
    if coverage_penalty:
        places = torch.arange(annotations.vectors.shape[1], device=device) < annotations.lengths[:, None]
    ranking = Ranking(length_penalty, coverage_penalty)
    steps = int(most.max()) + 1  # </s> is a step too
    if sample is None and not any(starts) and recordable(decoder):
        hypotheses = graphs_of(decoder).search(decoder, annotations, most, steps, ranking, beams=beams, best=best)
    else:
        beam = Beam.start(most, beams, best, places, apart=sample is not None)
        if any(starts):
            rows = [[*start, *[-1] * (steps - len(start))] for start in starts]
            beam = replace(beam, forced=torch.tensor(rows, device=device))
        history = History(steps, len(most), beams, device)
        state = decoder.start(annotations, beams=beams, steps=steps)
        generator = None if sample is None else sample.generator(device)
        with packed_weights():
            for at, alive, advanced in decode_steps(decoder, state, beam, steps, ranking, sample, generator):
                history.write(at, alive, advanced)
        hypotheses = history.best(best)
    if weights:
        _add_weights(decoder, annotations, hypotheses, first=weights == "first")
    return hypotheses


def _checked_prefixes(
    prefixes: Sequence[Sequence[int]] | None, sentences: int, decoder: Decoder[Any]
) -> Sequence[Sequence[int]]:
    """A prefix for each sentence, which may be empty."""
    if prefixes is None:
        return [[]] * sentences
    if len(prefixes) != sentences:
        raise ValueError(f"there are {sentences} sentences, and {len(prefixes)} prefixes")
    for prefix in prefixes:
        _check_words("a prefix", prefix, decoder)
    if decoder.most_steps is not None and (longest := max(map(len, prefixes))) >= decoder.most_steps:
        raise ValueError(f"a prefix has {longest} tokens, and this decoder has {decoder.most_steps} positions")
    return prefixes


def _check_phrases(phrases: Sequence[Sequence[Sequence[int]]], sentences: int, decoder: Decoder[Any]) -> None:
    if len(phrases) != sentences:
        raise ValueError(f"there are {sentences} sentences, and phrases for {len(phrases)}")
    for several in phrases:
        for phrase in several:
            _check_words("a phrase", phrase, decoder)


def _check_words(name: str, tokens: Sequence[int], decoder: Decoder[Any]) -> None:
    """Raise an error where a prefix or phrase has ids that are no words of the target vocabulary."""
    if min(tokens, default=UNKNOWN) <= END:
        raise ValueError(f"{name} has words only; <s> and </s> are added by the search")
    if (largest := max(tokens, default=0)) >= decoder.vocabulary_size:
        raise ValueError(
            f"{name} has the id {largest}, and the vocabulary of this decoder has {decoder.vocabulary_size} tokens; "
            "encode it with the target tokenizer of the model"
        )


def limits(places: Int[Tensor, "batch"], longest: int | None, steps: int | None = None) -> Int[Tensor, "batch"]:
    """How many tokens the translation of each sentence may have before </s>, for a decoder of at most `steps` steps."""
    if longest is not None and longest < 0:
        raise ValueError(f"longest is a number of tokens, got {longest}")
    most = (2 * places + 10).clamp(max=LONGEST) if longest is None else torch.full_like(places, longest)
    return most if steps is None else most.clamp(max=steps - 1)  # </s> is a step too


def decode_steps(
    decoder: Decoder[Any],
    state: State,
    beam: Beam,
    steps: int,
    ranking: Ranking,
    sample: Sample | None,
    generator: torch.Generator | None,
    *,
    unknown: bool = True,
) -> Iterator[tuple[Int[Tensor, "1"], Int[Tensor, "rows"], BeamStep]]:
    """Decode token by token, from a state and the next input tokens, until all have ended or `steps` are done.

    Yields the number of each step, the sentences that the rows of the beam belong to, and the step's result. `unknown`
    allows <unk>.
    """
    loop, device = BeamLoop(decoder, state, beam, ranking, sample, generator, unknown=unknown), beam.tokens.device
    for step in range(steps):
        at, sentences = loop.at, loop.sentences
        yield at, sentences, loop.step()
        if device.type == "cpu":
            # A finished sentence costs as much as any other; removing it costs a copy of the state.
            done = loop.done()
            finished = int(done.sum())
            if finished == len(sentences):
                return
            if finished * 8 >= len(sentences):
                loop.keep((~done).nonzero().squeeze(1))
        elif step % STEPS == STEPS - 1 and bool(loop.done().all()):  # the only synchronisation with the GPU
            return


def _add_weights(
    decoder: Decoder[Any], annotations: Annotations, hypotheses: list[list[Hypothesis]], *, first: bool
) -> None:
    """Sets the weights of every hypothesis, or of each sentence's first: one teacher-forced pass over all steps."""
    wanted = [several[:1] if first else several for several in hypotheses]
    rows = [(sentence, hypothesis) for sentence, several in enumerate(wanted) for hypothesis in several]
    device = annotations.vectors.device
    longest = max(len(hypothesis.tokens) for _, hypothesis in rows)
    tokens = torch.tensor(
        [[BEGIN, *hypothesis.tokens] + [PAD] * (longest - len(hypothesis.tokens)) for _, hypothesis in rows],
        device=device,
    )
    sentences = torch.tensor([sentence for sentence, _ in rows], device=device)
    decoded = decoder(tokens, annotations.select(sentences), weights=True)
    if decoded.weights is None:
        return
    lengths = annotations.lengths.tolist()
    for row, (sentence, hypothesis) in enumerate(rows):
        steps = len(hypothesis.tokens) + 1
        hypothesis.weights = decoded.weights[row, :, :steps, : lengths[sentence]].float().cpu().clone()
        if decoded.generation is not None:
            hypothesis.generation = decoded.generation[row, :steps].float().cpu().clone()
