"""The units of a job: trials of candidates, networks, their ensemble. Each is saved as soon as it is finished.

"trial-0", "trial-1" ... are the candidates, if several; "0", "1" ... the seeds; "ensemble-5" the average of five networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file, save

from bayesify import spectrum
from bayesify.errors import DivergenceError
from bayesify.files import write_atomically
from experiments.harness.protocol import Context, Job, Unit, UnitError
from experiments.protocols.images.data import TestParts, corrupted, load_test, load_train
from experiments.protocols.images.scores import Predictions, average, evaluate, scores
from experiments.protocols.images.settings import Setup
from experiments.protocols.images.training import Trained, calibrate, predict_log_probs, train

__all__ = ["Work", "chosen", "total_epochs", "unit_names"]

_TRIAL, _ENSEMBLE = "trial-", "ensemble-"
_SEED_OF_TRIALS = 0


def unit_names(setup: Setup, seeds: int, ensemble: bool) -> tuple[str, ...]:
    """Names of the units of a job, in the order of their dependencies.

    Args:
        setup: with its candidates.
        seeds: number of networks.
        ensemble: whether their average is evaluated, too.
    """
    trials = len(setup.candidates())
    names = [f"{_TRIAL}{number}" for number in range(trials)] if trials > 1 else []
    names += [str(seed) for seed in range(seeds)]
    return (*names, f"{_ENSEMBLE}{seeds}") if ensemble else tuple(names)


def total_epochs(setup: Setup, units: Sequence[str]) -> int:
    """Epochs that these units take; an ensemble takes none."""
    trials, nets = sum(unit.startswith(_TRIAL) for unit in units), sum(unit.isdigit() for unit in units)
    return trials * setup.trial().epochs + nets * setup.epochs


def chosen(setup: Setup, units: Mapping[str, Unit]) -> Unit | None:
    """The trial with the lowest validation NLL, the first of equals; None if all failed.

    Args:
        setup: of the job.
        units: results, with all trials.
    """
    trials = [units[f"{_TRIAL}{number}"] for number in range(len(setup.candidates()))]
    return min((trial for trial in trials if "failure" not in trial), key=lambda trial: trial["validation_nll"], default=None)


def _held_out_samples(setup: Setup) -> int:
    """Draws for validation rows."""
    return setup.validation_samples or setup.samples


class Work:
    """One run of a job.

    Args:
        job: the job.
        context: its data, results and cache.
        requested: units to run. Missing units that they depend on run first.
    """

    def __init__(self, job: Job, context: Context, requested: Sequence[str]) -> None:
        self.setup = Setup.from_dict(job.settings["setup"])
        self.context = context
        self.seeds = [unit for unit in job.units if unit.isdigit()]
        self.units: dict[str, Unit] = dict(context.ready)
        trials = [unit for unit in job.units if unit.startswith(_TRIAL)]
        tested = [unit for unit in job.units if unit in requested and unit not in trials]
        self.trials = [unit for unit in trials if unit in requested or (tested and unit not in self.units)]
        self.nets = [unit for unit in tested if unit in self.seeds]
        self.ensembles = [unit for unit in tested if unit not in self.seeds]
        if self.ensembles:
            self.nets += [seed for seed in self.seeds if seed not in self.nets and not self._is_cached(seed)]
        self.predictions: dict[str, Predictions] = {}
        self.done, self.total = 0.0, 0.0

    def run(self) -> Mapping[str, Unit]:
        """Run and save the units one by one.

        Raises:
            UnitError: a network, or all candidates, failed.
        """
        setup, trial = self.setup, self.setup.trial()
        self.train_parts = load_train(setup, self.context.data_dir)
        self.total = total_epochs(setup, [*self.trials, *self.nets])
        for unit in self.trials:
            self._save(unit, self._trial(trial.with_fields(fields := self._fields(unit)), fields))
        if not self.nets and not self.ensembles:
            return self.units

        fields = setup.candidates()[0]
        if len(setup.candidates()) > 1:
            best = chosen(setup, self.units)
            if best is None:
                raise UnitError("all candidates failed; their trials have the reasons")
            fields = best["fields"]
        self.test_parts = load_test(setup, self.train_parts.scaling, self.context.data_dir)
        failures = {}
        for seed in self.nets:
            try:
                unit = self._net(setup.with_fields(fields), seed)
            except DivergenceError as error:
                failures[seed] = str(error)
            else:
                self._save(seed, {**unit, "chosen": fields})
        if failures:
            raise UnitError("; ".join(f"seed {seed}: {reason}" for seed, reason in failures.items()))
        for name in self.ensembles:
            members = [self._predictions_of(seed) for seed in self.seeds]
            self._save(name, {**self._evaluate(average(members)), "members": len(members)})
        return self.units

    def _trial(self, setup: Setup, fields: Mapping[str, object]) -> Unit:
        """Train a candidate and evaluate it on validation images; the test images have not been read yet."""
        seed, parts = _SEED_OF_TRIALS, self.train_parts
        facts: Unit = {"fields": dict(fields), "epochs": setup.epochs}
        try:
            trained = self._train(setup, seed)
        except DivergenceError as error:
            return {**facts, "failure": str(error)}
        finally:
            self.done += setup.epochs
        x, y = parts.validation
        found = scores(predict_log_probs(trained, x, _held_out_samples(setup), seed), y, setup.bins)
        facts |= {"train_loss": trained.history.loss[-1], "seconds_per_epoch": trained.seconds_per_epoch}
        return {**facts, **{f"validation_{name}": value for name, value in found.items()}}

    def _train(self, setup: Setup, seed: int) -> Trained:
        parts = self.train_parts
        trained = train(setup, parts.train, parts.classes, seed, lambda share: self._report(share * setup.epochs))
        return calibrate(trained, parts.validation, _held_out_samples(setup), seed) if setup.calibrate else trained

    def _net(self, setup: Setup, seed: str) -> Unit:
        """Train a network and evaluate it on all test images."""
        parts, number = self.train_parts, int(seed)
        try:
            trained = self._train(setup, number)
        finally:
            self.done += setup.epochs
        images = {"test": self.test_parts.test[0], **self.test_parts.ood}
        predictions = {part: predict_log_probs(trained, x, setup.samples, number) for part, x in images.items()}
        for part, x in corrupted(setup, parts.scaling, self.context.data_dir):
            predictions[part] = predict_log_probs(trained, x, setup.samples, number)
        for draws in setup.sample_counts:
            predictions[f"draws/{draws}"] = predict_log_probs(trained, images["test"][: setup.subset], draws, number)
        held_out = predict_log_probs(trained, parts.validation[0], _held_out_samples(setup), number)
        self._cache(seed, {"validation": held_out, **predictions})
        history, top = trained.history, spectrum(trained.bnn)[-1]
        return {
            **self._evaluate(self._predictions_of(seed)),
            "train_loss": history.loss[-1],
            "train_nll": history.nll[-1],
            "kl": history.kl[-1],
            "last_layer": {"spectral_norm": top.spectral_norm, "stable_rank": top.stable_rank},
            "seconds_per_epoch": trained.seconds_per_epoch,
            "parameters": trained.parameters,
            "epochs": setup.epochs,
            "train_rows": len(parts.train[1]),
        }

    def _evaluate(self, predictions: Predictions) -> Unit:
        test: TestParts = self.test_parts
        unit = evaluate(predictions, self.train_parts.validation[1], test.test[1], self.setup.bins)
        notes = [note for note in (self.train_parts.note, test.note) if note]
        return {**unit, **({"note": "; ".join(notes)} if notes else {})}

    def _fields(self, trial: str) -> dict[str, object]:
        return self.setup.candidates()[int(trial.removeprefix(_TRIAL))]

    def _save(self, name: str, unit: Unit) -> None:
        self.units[name] = unit
        self.context.save({name: unit})

    def _report(self, epochs: float) -> None:
        self.context.progress(min(1.0, (self.done + epochs) / self.total))

    def _path(self, seed: str) -> Path | None:
        return None if self.context.cache is None else self.context.cache / f"{seed}.safetensors"

    def _is_cached(self, seed: str) -> bool:
        path = self._path(seed)
        return path is not None and path.is_file()

    def _cache(self, seed: str, predictions: Predictions) -> None:
        """Cache the predictions of a network for the ensemble."""
        self.predictions[seed] = predictions
        if (path := self._path(seed)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, save({part: x.contiguous() for part, x in predictions.items()}))

    def _predictions_of(self, seed: str) -> Predictions:
        if seed not in self.predictions:
            path = self._path(seed)
            assert path is not None, "a net that is not cached has been trained"
            self.predictions[seed] = load_file(path)
        return self.predictions[seed]
