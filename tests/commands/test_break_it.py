"""`regard break`: both runs, what is printed and drawn, and what a model without its mask does token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from regard.commands import app
from regard.training.recipe_files import switches

if TYPE_CHECKING:
    from pathlib import Path

TINY = ("training.updates=4", "training.validate_every=2", "training.save_every=4", "training.warmup=1")


def test_every_switch_differs_from_the_whole_in_what_it_leaves_out() -> None:
    for switch in switches().values():
        whole, broken = (switch.load(broken=broken).to_dict() for broken in (False, True))
        changed = {
            f"{section}.{key}={value}".lower()
            for section in ("encoder", "decoder")
            for key, value in (broken[section] or {}).items()  # type: ignore[attr-defined]
            if value != whole[section][key]  # type: ignore[index]
        }
        assert changed == set(switch.off)


def test_it_lists_the_switches_and_refuses_others() -> None:
    output = CliRunner().invoke(app, ["break"]).output
    assert [line.split()[0] for line in output.splitlines()] == list(switches())
    with pytest.raises(ValueError, match="there is no part 'attention' to leave out"):
        CliRunner().invoke(app, ["break", "attention"], catch_exceptions=False)


def test_without_a_mask_validation_and_generation_disagree(tmp_path: Path) -> None:
    """With a mask, the loss of whole windows is that of reading token by token; both are over held-out text."""
    settings = (
        *TINY,
        "data.sentences=200",
        "data.longest=16",
        "training.tokens=64",
        "decoder.width=16",
        "decoder.layers=1",
    )
    arguments = ["break", "mask", *settings, "--out", str(tmp_path), "--save-plot", str(tmp_path / "curves.svg")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if "valid_nll" in line]
    assert lines[0].startswith("whole: valid_nll")
    assert lines[2].startswith("decoder.masked=false: valid_nll")
    taught, alone = (
        [float(line.split("valid_nll ")[1].split(";")[0].split(",")[0]) for line in lines[at::2]] for at in (0, 1)
    )
    assert abs(taught[0] - alone[0]) < 0.2  # the first windows, and all of them
    assert "<svg" in (tmp_path / "curves.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(("rate", "whole"), [("1e5", "whole (diverged)"), ("1e2", "whole")])
def test_a_model_that_diverges_is_the_result(tmp_path: Path, rate: str, whole: str) -> None:
    """A rate that nothing survives, and one that a model with norms survives."""
    settings = (*TINY, "training.validate_every=1", "data.train=100", "data.valid=20", "data.test=20")
    settings += ("training.tokens=256", "encoder.width=16", "encoder.hidden=16", "encoder.layers=6")
    plot = tmp_path / "curves.svg"
    result = CliRunner().invoke(
        app,
        ["break", "norm", *settings, f"training.rate={rate}", "--out", str(tmp_path), "--save-plot", str(plot)],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert any(line.startswith("encoder.norm=none: diverged, the ") for line in lines)
    assert any(line.startswith("whole: diverged, the ") for line in lines) == ("diverged" in whole)
    drawn = plot.read_text(encoding="utf-8")
    assert f"<!-- {whole} -->" in drawn
    assert "<!-- encoder.norm=none (diverged) -->" in drawn


def test_a_rate_that_float32_cannot_hold_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["break", "norm", "training.rate=1e38", "--out", str(tmp_path / "runs")])
    assert result.exit_code == 1
    assert "training.rate" in result.output
    assert "1e+30" in result.output
    assert not (tmp_path / "runs").exists()
