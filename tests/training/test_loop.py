"""The loop: it learns, it keeps what it should, and what the results of validations mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.data import TokenizerPair
from regard.decoding import translate
from regard.models import Classifier, EncoderDecoder, load
from regard.models.saved_weights import snapshot_files
from regard.training import Run, fit, recipe_files
from regard.training.checkpoint import Checkpoints
from regard.training.devices import one_thread
from regard.training.loop import Training, ValidationState, is_better
from regard.training.recipe_sections import TrainingSection
from regard.training.tasks import TranslateTask
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

    from regard.data import Batch


class TestFit:
    def test_learns_and_leaves_everything_behind(self, file: Path, tmp_path: Path) -> None:
        settings = ["training.updates=200", "training.schedule=cosine", "training.validate_every=100"]
        settings += ["encoder.width=32", "encoder.embedding=32", "encoder.dropout=0.0"]
        settings += ["decoder.width=64", "decoder.embedding=32", "decoder.dropout=0.0"]
        run = fit(recipe_files.load_recipe(file, settings), tmp_path / "run")
        assert Run.open(tmp_path / "run").recipe == run.recipe == recipe_files.load_recipe(file, settings)
        rows = measured(run.folder)
        losses = [float(row[2]) for row in rows if row[2]]
        assert len(losses) == 200
        assert losses[-1] < 0.5 * losses[0]
        validations = [(int(row[0]), float(row[5]), float(row[6])) for row in rows if row[6]]
        assert [update for update, _, _ in validations] == [100, 200]
        assert validations[1][1] < validations[0][1]
        assert validations[1][2] > 80

        model, tokenizers = EncoderDecoder.from_pretrained(run.model), TokenizerPair.load(run.model)
        assert [result.text for result in translate(model, tokenizers, ["ba fi", "ke"])] == ["baba fifi", "keke"]
        assert "regard translate" in (run.model / "README.md").read_text(encoding="utf-8")

    def test_the_loss_is_the_mean_over_tokens(self, file: Path, tmp_path: Path) -> None:
        """The first line of the metrics, computed again by hand."""
        settings = ["training.updates=1", "encoder.dropout=0.0", "decoder.dropout=0.0", "training.smoothing=0.1"]
        run = fit(recipe_files.load_recipe(file, settings), tmp_path / "run")
        from regard.data import Batches, EncodedCorpus

        tokenizers = TokenizerPair.load(run.data)
        torch.manual_seed(run.recipe.seed)
        model = EncoderDecoder(run.recipe.writer(len(tokenizers.source), len(tokenizers.target)))
        batch = Batches(EncodedCorpus.load(run.data / "train"), tokens=200, seed=run.recipe.seed, epoch=0)[0]
        logits = model.readout(model(batch.source, batch.source_lengths, batch.target[:, :-1]).features)
        wanted = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1
        )
        assert float(measured(run.folder)[0][2]) == pytest.approx(wanted.item(), rel=1e-5)

    def test_the_first_validation_is_what_evaluate_measures(self, file: Path, tmp_path: Path) -> None:
        from regard.training.corpora import read
        from regard.training.evaluation import evaluate_translation

        run = fit(recipe_files.load_recipe(file, ["training.updates=10", "training.average=1"]), tmp_path / "run")
        result, _ = evaluate_translation(
            EncoderDecoder.from_pretrained(run.model),
            TokenizerPair.load(run.model),
            read(run.recipe.data, "valid"),
            **run.recipe.search.to_dict(),
        )
        last = measured(run.folder)[-1]
        assert float(last[6]) == pytest.approx(result.tokenised_bleu.value)
        assert result.perplexity is not None
        assert float(last[5]) == pytest.approx(math.log(result.perplexity), rel=1e-5)

    def test_finishing_does_not_need_the_trained_parameters(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of parameters that FSDP shards, a process has only its piece at the end, which may be empty."""
        finish = Training.save_final_model

        def sharded(trained: Training) -> None:
            for parameter in trained.model.parameters():
                parameter.data = parameter.data.new_empty(0)
            finish(trained)

        recipe = recipe_files.load_recipe(file, ["training.updates=4"])
        whole = EncoderDecoder.from_pretrained(fit(recipe, tmp_path / "whole").model).state_dict()
        monkeypatch.setattr(Training, "save_final_model", sharded)
        pieces = EncoderDecoder.from_pretrained(fit(recipe, tmp_path / "pieces").model).state_dict()
        for name, tensor in pieces.items():
            assert torch.equal(tensor, whole[name])

    def test_stops_when_bleu_stops_rising(self, file: Path, tmp_path: Path) -> None:
        settings = ["training.rate=1e-12", "training.validate_every=2", "training.patience=3", "training.save_every=50"]
        run = fit(recipe_files.load_recipe(file, settings), tmp_path / "run")
        assert int(measured(run.folder)[-1][0]) == 2 + 3 * 2, "the first is the best, then three that are not better"
        assert run.model.exists()
        assert run.last.exists()

    @pytest.mark.parametrize(("average", "shown"), [(1, "last: BLEU"), (3, "validating the average of the last 3")])
    def test_an_average_of_one_checkpoint_is_not_validated_again(
        self,
        file: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        average: int,
        shown: str,
    ) -> None:
        from regard.training import loop

        count = 0

        def counted(*arguments: Any) -> tuple[float, float]:
            nonlocal count
            count += 1
            return validate(*arguments)

        validate = loop.validate
        finish = Training.save_final_model

        def finishes(trained: Training) -> None:
            monkeypatch.setattr(loop, "validate", counted)
            finish(trained)

        monkeypatch.setattr(Training, "save_final_model", finishes)
        run = fit(recipe_files.load_recipe(file, [f"training.average={average}"]), tmp_path / "run")
        assert count == (average > 1)
        assert shown in capsys.readouterr().out
        scores = [float(row[6]) for row in measured(run.folder) if row[6]]
        kept = EncoderDecoder.from_pretrained(run.model).state_dict()
        if average == 1:
            snapshots = Checkpoints(run, 1)
            expected = snapshots.average(snapshots.updates) if scores[-1] == max(scores) else snapshots.best()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in kept.items())

    def test_a_plateau_cuts_the_rate(self, file: Path, tmp_path: Path) -> None:
        settings = ["training.rate=1e-9", "training.schedule=plateau", "training.hold=2", "training.cut=0.5"]
        run = fit(
            recipe_files.load_recipe(file, [*settings, "training.validate_every=2", "training.updates=11"]),
            tmp_path / "run",
        )
        rates = [float(row[4]) * 1e9 for row in measured(run.folder) if row[4]]
        assert rates == pytest.approx([1] * 6 + [0.5] * 4 + [0.25])

    def test_a_loss_that_is_no_number_ends_it(self, file: Path, tmp_path: Path) -> None:
        settings = ["training.rate=1e30", "training.clip=0.0", "training.validate_every=1000"]
        with pytest.raises(ValueError, match=r"the loss up to update \d+ is nan: a lower training.rate"):
            fit(recipe_files.load_recipe(file, [*settings, "training.save_every=1000"]), tmp_path / "run")

    @pytest.mark.parametrize("poisoned", ["loss", "gradient"])
    def test_what_is_no_number_is_never_kept(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poisoned: str
    ) -> None:
        """From update 4 on there are no numbers; update 5 would be saved and validated, update 20 logged."""

        backward = Training.backward

        def spoilt(self: Training, batches: list[Batch]) -> torch.Tensor:
            sums = backward(self, batches)
            if self.update == 4:
                next(self.model.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]
            if poisoned == "loss" and self.update >= 3:
                sums[1:] *= math.nan
            return sums

        monkeypatch.setattr(Training, "backward", spoilt)
        settings = ["training.log_every=20", "training.save_every=1", "training.average=9", "training.clip=0.0"]
        wrong = {"loss": "the loss up to update 4 is nan", "gradient": "the weights after update 5 are not finite"}
        with pytest.raises(ValueError, match=f"{wrong[poisoned]}: .*the last checkpoint is from before"):
            fit(recipe_files.load_recipe(file, settings), tmp_path / "run")
        run = Run.open(tmp_path / "run")
        kept = 3 if poisoned == "loss" else 4
        assert len(Checkpoints(run, 9).updates) == kept
        assert torch.load(run.last, weights_only=True)["global_step"] == kept
        snapshots = Checkpoints(run, 9)
        assert all(tensor.isfinite().all() for tensor in snapshots.average(snapshots.updates).values())

    def test_workers_make_the_same_batches(self, file: Path, tmp_path: Path) -> None:
        for workers in (0, 2):
            settings = [f"training.workers={workers}", "training.updates=6", "training.validate_every=6"]
            fit(recipe_files.load_recipe(file, settings), tmp_path / str(workers))
        assert measured(tmp_path / "0") == measured(tmp_path / "2")

    @pytest.mark.parametrize("base", ["bahdanau-phrasebook", "transformer-phrasebook"])
    def test_bfloat16_learns_what_float32_learns(self, file: Path, tmp_path: Path, base: str) -> None:
        text = file.read_text(encoding="utf-8").replace("bahdanau-phrasebook", base)
        if base == "transformer-phrasebook":
            text = text.replace("embedding = 16", "heads = 2\nhidden = 32")
        file = tmp_path / "mixed.toml"
        file.write_text(text, encoding="utf-8")
        settings, losses = ["encoder.dropout=0.0", "decoder.dropout=0.0", "training.log_every=5"], {}
        for precision in ("32-true", "bf16-mixed"):
            recipe = recipe_files.load_recipe(file, [*settings, f"training.precision={precision}"])
            run = fit(recipe, tmp_path / precision)
            losses[precision] = [float(line[2]) for line in measured(run.folder) if line[2]]
            assert {x.dtype for x in load(run.model).parameters()} == {torch.float32}
        assert losses["bf16-mixed"] != losses["32-true"]
        assert losses["bf16-mixed"] == pytest.approx(losses["32-true"], rel=3e-2)
        assert losses["bf16-mixed"][-1] < 0.95 * losses["bf16-mixed"][0]

    def test_a_missing_tokenizer_is_named_before_anything_is_made(self, file: Path, tmp_path: Path) -> None:
        recipe = recipe_files.load_recipe(file, ["tokenizer.load=nowhere"])
        with pytest.raises(ValueError, match=r"tokenizer\.load = 'nowhere': nowhere holds neither"):
            fit(recipe, tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_preparing_says_how_far_it_is(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("regard.training.corpora.REPORT", 0.0)
        fit(recipe_files.load_recipe(file, ["training.updates=1"]), tmp_path / "run")
        progress = capsys.readouterr().err
        assert "learning the vocabulary: 300 rows so far" in progress
        assert "encoding train: 300 rows so far" in progress

    def test_a_tied_table_is_stored_once(self, file: Path, tmp_path: Path) -> None:
        settings = ["tied=all", "training.updates=2", "training.average=2", "training.save_every=1"]
        run = fit(recipe_files.load_recipe(file, [*settings, "tokenizer.joint=true"]), tmp_path / "run")
        snapshots = Checkpoints(run, 2)
        tables = ["encoder.embedding.weight", "decoder.embedding.weight", "decoder.output.weight"]
        average = snapshots.average(snapshots.updates)
        assert all(torch.equal(average[name], average[tables[0]]) for name in tables)
        model = EncoderDecoder.from_pretrained(run.model)
        once = sum(parameter.nbytes for parameter in model.parameters())
        for file in run.checkpoints.glob("update-*.safetensors"):
            assert once < file.stat().st_size < once + average[tables[0]].nbytes


def test_the_demo_trains_and_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from regard import demo as training

    load = recipe_files.load_recipe
    small = ["data.train=80", "data.valid=6", "data.test=40", "training.updates=2", "training.accelerator=cpu"]
    monkeypatch.setattr(recipe_files, "load_recipe", lambda name, given: load(name, [*given, *small]))
    console = Console(width=120, record=True)
    for part in training.training_sections():
        console.print(part)
    shown = console.export_text()
    assert "BLEU, 6–10 words" in shown
    assert "seconds to train" in shown


@pytest.mark.parametrize("name", list(recipe_files.recipe_summaries()))
def test_a_shipped_recipe_makes_its_model(name: str) -> None:
    recipe = recipe_files.load_recipe(name)
    if recipe.head is not None:
        classifier = Classifier(recipe.classifier(40 if recipe.source.kind == "text" else 0, 3))
        assert classifier.config.head == recipe.head
    else:
        model = EncoderDecoder(recipe.writer(40 if recipe.source.kind == "text" else 0, 40))
        assert model.config.decoder == recipe.decoder


@pytest.mark.parametrize(
    ("name", "changes", "threads"),
    [
        ("bahdanau-phrasebook", [], 1),
        ("lstmn-phrases", [], 1),
        ("bahdanau-phrasebook", ["decoder.width=512"], 3),
        ("transformer-phrasebook", [], 3),
    ],
    ids=["recurrent", "lstmn", "wide", "transformer"],
)
def test_one_thread_trains_a_narrow_recurrent_model(name: str, changes: list[str], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread(recipe_files.load_recipe(name, [*changes, "training.accelerator=cpu"])):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_pipe_hears_now_and_then_how_far_training_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from regard.training import fitting

    now = 1000.0
    monkeypatch.setattr(fitting.time, "monotonic", lambda: now)
    shown = fitting.ProgressBar(shown=True)
    shown.start(0, 4000)
    for update in range(10, 200, 10):  # 10 updates are 4 seconds
        now += 4
        shown.move(update, "loss 2.000  9 tokens/s  ")
        if update == 100:
            shown.say("update 100: validation")
    assert capsys.readouterr().out.splitlines() == [
        "update 30 of 4,000: loss 2.000  9 tokens/s",
        "update 60 of 4,000: loss 2.000  9 tokens/s",
        "update 90 of 4,000: loss 2.000  9 tokens/s",
        "update 100: validation",
        "update 130 of 4,000: loss 2.000  9 tokens/s",
        "update 160 of 4,000: loss 2.000  9 tokens/s",
        "update 190 of 4,000: loss 2.000  9 tokens/s",
    ]
    other = fitting.ProgressBar(shown=False)  # another process's
    other.start(0, 4000)
    now += 100
    other.move(190, "loss 2.000")
    assert not capsys.readouterr().out


SETTINGS = TrainingSection(patience=2, hold=2)


def test_equal_scores_are_judged_by_their_loss() -> None:
    state = ValidationState()
    assert state.add(350, 100.0, 0.383, SETTINGS)
    assert state.add(400, 100.0, 0.369, SETTINGS)
    assert not state.add(450, 100.0, 0.369, SETTINGS)
    assert (state.best_update, state.best_loss, state.poor, state.since_cut) == (400, 0.369, 1, 1)
    assert not state.add(500, 99.0, 0.1, SETTINGS)
    assert state.patience_is_over(SETTINGS)
    assert state.add(550, 101.0, 0.9, SETTINGS), "a higher score is better, whatever its loss"


def test_a_best_score_whose_loss_is_not_known_stays() -> None:
    """Checkpoints of earlier versions have no losses."""
    state = ValidationState(best=100.0, best_update=350, last=100.0, last_update=350)
    assert not state.add(400, 100.0, 0.369, SETTINGS)
    assert state.best_update == 350
    assert not is_better((100.0, math.nan), (100.0, 0.4))
    assert not is_better((100.0, 0.4), (100.0, math.nan))


def equal_scores(self: Any, answers: list[str], pairs: Any, nll: float) -> float:
    return 100.0


def losses(run: Path) -> dict[int, float]:
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()[1:]]
    return {int(row[0]): float(row[6]) for row in rows if row[6]}


@pytest.mark.parametrize("killed", [False, True], ids=["straight", "resumed"])
def test_the_checkpoint_with_the_lowest_loss_is_kept_of_equal_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], killed: bool
) -> None:
    """The rate is so high that the loss gets worse in the end; the same after a resumption."""
    torch.set_num_threads(1)
    monkeypatch.setattr(TranslateTask, "score", equal_scores)
    settings = ["training.updates=12", "training.validate_every=2", "training.save_every=2", "training.average=2"]
    recipe = recipe_files.load_recipe(recipe_file(tmp_path), [*settings, "training.rate=0.2", "search.beams=1"])
    if killed:
        save = Training.save

        def ends(module: Training) -> None:
            save(module)
            if module.update == 8:
                raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(Training, "save", ends)
            with pytest.raises(RuntimeError, match="killed"):
                fit(recipe, tmp_path / "run")
    run = fit(recipe, tmp_path / "run", resume=killed)
    by_update = losses(run.folder)
    lowest = min(by_update, key=lambda update: by_update[update])
    standing = torch.load(run.last, weights_only=True)["regard"]["standing"]
    assert (standing["best_update"], standing["best_loss"]) == (lowest, by_update[lowest])
    assert int(snapshot_files(run.checkpoints, "best")[-1].stem.split("-")[1]) == lowest
    said = " ".join(capsys.readouterr().out.split())
    assert "averaged: BLEU 100.00, loss " in said
    assert f"best single: BLEU 100.00, loss {by_update[lowest]:.3f}" in said
