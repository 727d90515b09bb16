"""Captioners: the equations of Show, Attend and Tell, agreement step by step, what is shown, and that they learn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from regard import watch
from regard.data import Batches, EncodedCorpus, Tokenizer, TokenizerPair
from regard.data.corpora import scenes
from regard.data.media import PictureReader
from regard.models import (
    Annotations,
    DecoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    GridEncoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    show_attend_tell_decoder,
)
from regard.models.show_attend_tell_decoder import ShowAttendTellDecoder

SMALL = {"hidden": 6, "embedding": 8, "width": 10, "dropout": 0.0}
WORDS, MEMORY, PLACES = 9, 12, 7
DECODERS: dict[str, DecoderConfig] = {
    "plain": ShowAttendTellDecoderConfig(attention="none", hidden=16, embedding=24, width=48, dropout=0.0),
    "soft": ShowAttendTellDecoderConfig(
        attention="soft", hidden=16, embedding=24, width=48, dropout=0.0, penalty=0.001
    ),
    "hard": ShowAttendTellDecoderConfig(attention="hard", hidden=16, embedding=24, width=48, dropout=0.0),
    "Bahdanau": RecurrentDecoderConfig(embedding=24, width=48, dropout=0.0),
    "Transformer": TransformerDecoderConfig(width=48, heads=4, hidden=96, layers=1, dropout=0.0),
}
GRID = GridEncoderConfig(size=64, width=32)


def annotations(batch: int = 3) -> Annotations:
    vectors = torch.randn(batch, PLACES, MEMORY, dtype=torch.float64)
    return Annotations(vectors, torch.full((batch,), PLACES), vectors.mean(1))


def decoder(attention: str, **how: float) -> ShowAttendTellDecoder:
    made = ShowAttendTellDecoder(ShowAttendTellDecoderConfig(attention=attention, **SMALL, **how), WORDS, MEMORY)  # type: ignore[arg-type]
    return made.double().eval()


def written_out(d: ShowAttendTellDecoder, tokens: Tensor, given: Annotations) -> tuple[Tensor, Tensor | None]:
    """The equations of the docstring, one after the other."""
    a, mean = given.vectors, given.summary
    h, c = torch.tanh(d.first_h(mean)), torch.tanh(d.first_c(mean))
    features, maps = [], []
    for t in range(tokens.shape[1]):
        y = d.embedding(tokens[:, t])
        beta = torch.sigmoid(d.gate(h))
        if d.energy is None:
            z = beta * mean
        else:
            e = torch.tanh(d.energy.query(h)[:, None] + d.energy.key(a)) @ d.energy.weight
            alpha = torch.softmax(e, -1)
            if d.config.attention == "hard":
                alpha = torch.nn.functional.one_hot(alpha.argmax(-1), PLACES).double()
            z = beta * (alpha[..., None] * a).sum(1)
            maps.append(alpha)
        i, f, g, o = (y @ d.cell.early.mT + z @ d.cell.late.mT + h @ d.cell.recall.mT + d.cell.bias).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        features.append(torch.tanh(y + d.from_state(h) + d.from_context(z)))
    return torch.stack(features, 1), torch.stack(maps, 1)[:, None] if maps else None


@pytest.mark.parametrize("attention", ["none", "soft", "hard"])
def test_the_equations(attention: str) -> None:
    d, given = decoder(attention), annotations()
    tokens = torch.randint(1, WORDS, (3, 5))
    result = d(tokens, given, weights=True)
    features, maps = written_out(d, tokens, given)
    torch.testing.assert_close(result.features, features)
    assert (result.weights is None) == (maps is None)
    if maps is not None:
        torch.testing.assert_close(result.weights, maps)
        assert d(tokens, given).weights is None  # unless asked for


@pytest.mark.parametrize("attention", ["none", "soft", "hard"])
def test_steps_agree_with_the_whole_whatever_the_beams_do(attention: str) -> None:
    d, given = decoder(attention), annotations()
    tokens = torch.randint(1, WORDS, (6, 4))  # two beams of three sentences
    whole = d(tokens, given.select(torch.tensor([0, 0, 1, 1, 2, 2])), weights=True)
    state, swap = d.start(given, beams=2), torch.tensor([1, 0, 3, 2, 5, 4])
    for t in range(4):
        features, state, seen = d.step(tokens[:, t], state, weights=True)
        torch.testing.assert_close(features, whole.features[:, t])
        if attention != "none":
            torch.testing.assert_close(seen, whole.weights[:, :, t])
        state = state.reorder(swap).reorder(swap)
    kept = torch.tensor([2, 0])
    rest = torch.tensor([4, 5, 0, 1])
    before = d.start(given, beams=2)
    _, before, _ = d.step(tokens[:, 0], before)
    features, _, _ = d.step(tokens[rest, 1], before.keep(kept))
    torch.testing.assert_close(features, whole.features[rest, 1])


def test_the_doubly_stochastic_penalty() -> None:
    d, given = decoder("soft", penalty=0.25), annotations(2)
    tokens, wanted = torch.randint(1, WORDS, (2, 4)), torch.randint(1, WORDS, (2, 4))
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    alpha = d(tokens, given, weights=True).weights[:, 0]
    assert d.extra(d(tokens, given), wanted, real) is None  # in evaluation there is none
    d.train()
    expected = sum(
        0.25 * (1 - alpha[row, :length, place].sum()) ** 2
        for row, length in ((0, 4), (1, 2))
        for place in range(PLACES)
    )
    torch.testing.assert_close(d.extra(d(tokens, given), wanted, real), expected)
    real[1] = False  # a row that only fills the batch
    first = sum(0.25 * (1 - alpha[0, :, place].sum()) ** 2 for place in range(PLACES))
    torch.testing.assert_close(d.extra(d(tokens, given), wanted, real), first)


def test_gradients_of_soft_attention() -> None:
    d, given = decoder("soft"), annotations(2)
    tokens = torch.randint(1, WORDS, (2, 3))
    given.vectors.requires_grad_()

    def by(forward: object) -> list[Tensor]:
        d.zero_grad()
        again = Annotations(given.vectors, given.lengths, given.vectors.mean(1))
        (forward(d, tokens, again) * torch.linspace(-1, 1, 8, dtype=torch.float64)).sum().backward()  # type: ignore[operator]
        result = [given.vectors.grad, *(p.grad for p in d.parameters())]
        given.vectors.grad = None
        return [torch.zeros(()) if g is None else g.clone() for g in result]  # the output's, which is not used here

    ours = by(lambda d, tokens, given: d(tokens, given).features)
    truth = by(lambda d, tokens, given: written_out(d, tokens, given)[0])
    for result, wanted in zip(ours, truth, strict=True):
        torch.testing.assert_close(result, wanted)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r'encoder\.kind is "none"'):
        EncoderDecoder(EncoderDecoderConfig(0, WORDS, NoEncoderConfig(), ShowAttendTellDecoderConfig()))
    for wrong, message in (
        (ShowAttendTellDecoderConfig(attention="hard", penalty=0.5), 'decoder.penalty = 0.5 needs attention = "soft"'),
        (ShowAttendTellDecoderConfig(attention="soft", warmup=5), 'decoder.warmup = 5 needs attention = "hard"'),
    ):
        with pytest.raises(ValueError, match=message):
            EncoderDecoder(EncoderDecoderConfig(0, WORDS, GRID, wrong))
    with pytest.raises(ValueError, match="multiples of 4"):
        EncoderDecoder(EncoderDecoderConfig(0, WORDS, GridEncoderConfig(width=30), ShowAttendTellDecoderConfig()))
    model = EncoderDecoder(EncoderDecoderConfig(0, WORDS, GRID, ShowAttendTellDecoderConfig()))
    with pytest.raises(ValueError, match=r"reads pictures \[batch, 64, 64, 3\], got \[1, 32, 32, 3\]"):
        model.encode(torch.zeros(1, 32, 32, 3, dtype=torch.uint8), torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_cell_is_lost_to_rounding(dtype: torch.dtype) -> None:
    encoder = EncoderDecoder(
        EncoderDecoderConfig(0, WORDS, GridEncoderConfig(size=136, width=8), ShowAttendTellDecoderConfig())
    ).encoder
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        seen = encoder(torch.zeros(2, 136, 136, 3, dtype=torch.uint8), torch.ones(2, dtype=torch.long))
    assert seen.lengths.tolist() == [289, 289]  # bfloat16 has 288 and 290


def test_a_cell_sees_what_is_around_it_and_knows_where_it_is() -> None:
    encoder = EncoderDecoder(EncoderDecoderConfig(0, WORDS, GRID, ShowAttendTellDecoderConfig())).eval().encoder
    pixels = torch.full((1, 64, 64, 3), 128, dtype=torch.uint8)
    changed = pixels.clone()
    changed[0, 28, 36] = 255  # in the cell of row 3, column 4
    with torch.no_grad():
        before, after = (encoder(x, torch.ones(1)).vectors.unflatten(1, (8, 8)) for x in (pixels, changed))
    moved = (before != after).any(-1)[0]
    assert moved[3, 4]
    rows, columns = moved.nonzero().T
    assert (rows - 3).abs().max() <= 1
    assert (columns - 4).abs().max() <= 1
    # Inside an even picture all cells see the same, and are told apart by their places alone.
    inner = before[0, 2:6, 2:6].flatten(0, 1)
    assert torch.cdist(inner, inner)[~torch.eye(16, dtype=torch.bool)].min() > 0.1


@pytest.fixture(scope="module")
def corpus() -> tuple[EncodedCorpus, TokenizerPair]:
    pairs = [pair for pair in scenes.pairs(400, seed=5) if len(pair.target.split()) < 5][:96]
    sides = TokenizerPair(PictureReader(64), Tokenizer.train("word", 100, (pair.target for pair in pairs)))
    return EncodedCorpus.build(pairs, sides), sides


@pytest.mark.parametrize("kind", DECODERS)
def test_captioners_learn_and_show_what_they_used(corpus: tuple[EncodedCorpus, TokenizerPair], kind: str) -> None:
    encoded, sides = corpus
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(0, len(sides.target), GRID, DECODERS[kind]))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for epoch in range(8):
        nll = tokens = 0.0
        for batch in Batches(encoded, tokens=32 * int(encoded.widths.max()), epoch=epoch):
            loss = model.loss(batch)
            optimizer.zero_grad()
            (loss.total / loss.tokens).backward()
            optimizer.step()
            nll, tokens = nll + loss.nll.item(), tokens + loss.tokens.item()
        losses.append(nll / tokens)
    assert losses[-1] < 0.75 * losses[0], losses
    model.eval()
    batch = next(iter(Batches(encoded, tokens=4 * int(encoded.widths.max()))))
    with torch.no_grad(), watch(model) as seen:
        decoded = model(batch.source, batch.source_lengths, batch.target[:, :-1], weights=True)
    crossing = [call for call in seen if call.kind == "cross"]
    assert bool(crossing) == (kind != "plain")
    assert seen.faithful or kind == "plain", seen
    if kind in ("soft", "hard"):
        (call,) = crossing
        shown = call.weights.tile(slice(None), slice(None))
        torch.testing.assert_close(shown.reshape(decoded.weights.shape), decoded.weights)


def test_a_captioner_is_saved_whole(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_attend_tell_decoder, "EXPECTED", 0.0)
    model = EncoderDecoder(EncoderDecoderConfig(0, WORDS, GRID, DECODERS["hard"], tied="decoder"))
    batch = SimpleNamespace(
        source=torch.randint(0, 255, (2, 64, 64, 3), dtype=torch.uint8),
        source_lengths=torch.ones(2),
        target=torch.randint(1, WORDS, (2, 5)),
        target_lengths=torch.tensor([5, 4]),
    )
    model.loss(batch)  # moves the baseline
    model.save_pretrained(str(tmp_path))
    again = EncoderDecoder.from_pretrained(str(tmp_path))
    assert again.config == model.config
    assert again.decoder.baseline == model.decoder.baseline != 0
    model.eval()
    assert again.loss(batch).nll == model.loss(batch).nll
