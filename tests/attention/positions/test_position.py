"""The pictures of positions: the right numbers, drawn."""

import torch

from regard import Alibi, Rotary
from regard.attention.positions.position import Position
from regard.layers import LearnedPositions, RotaryPositions, SinusoidalPositions


def test_curves_are_cosines_between_vectors() -> None:
    """Those of sinusoidal and rotary positions in closed form, against products of the vectors themselves."""
    distances = torch.arange(-5, 6)
    table = SinusoidalPositions(8).matrix(30)
    unit = table / table.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(SinusoidalPositions(8).by_distance(distances)[0], unit[12] @ unit[12 + distances].mT)
    ones = torch.ones(30, 8, dtype=torch.float64)
    rotated = RotaryPositions(8)(ones) / 8**0.5
    want = rotated[12] @ rotated[12 + distances].mT
    torch.testing.assert_close(RotaryPositions(8).by_distance(distances)[0], want)
    torch.testing.assert_close(Rotary(width=8).by_distance(distances)[0], want)


def test_learned_curve_is_the_mean_over_pairs() -> None:
    positions = LearnedPositions(4, 6)
    unit = torch.nn.functional.normalize(positions.table.detach(), dim=-1)
    got = positions.by_distance(torch.tensor([0, 2, -2, 6, 100]))[0]
    apart = torch.stack([unit[i] @ unit[i + 2] for i in range(4)]).mean()
    torch.testing.assert_close(got, torch.stack([torch.tensor(1.0), apart, apart, *torch.zeros(2)]))


def test_pictures_go_from_the_smallest_number_to_the_largest() -> None:
    for position in (SinusoidalPositions(16), LearnedPositions(16, 8), RotaryPositions(16)):
        lines = str(position).splitlines()
        rows = lines[2 : lines.index("keys 32 before the query to 32 after it")]
        numbers = position.matrix(16)
        assert len(rows) == numbers.shape[0]
        assert {len(row) for row in rows} == {numbers.shape[1]}
        cells = "".join(rows)
        assert cells[int(numbers.argmax())] == "█"
        assert cells[int(numbers.argmin())] == "·"
    assert isinstance(Alibi(2), Position)
    assert Alibi(2).matrix(3) is None
