"""Runs of MLflow and TensorBoard, read with the readers of the libraries."""

from pathlib import Path

from bayesify.tracking import check_track


class Recorded:
    """What the reader of the library finds in the only run of a name: settings, facts, numbers by name and step, and files."""

    def __init__(self, track, name=None, group="bayesify"):
        kind, address = check_track(track)
        getattr(self, f"_read_{kind}")(address, group, name)

    def _read_mlflow(self, address, group, name):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(address)
        experiment = client.get_experiment_by_name(group)
        runs = client.search_runs([experiment.experiment_id])
        (run,) = [run for run in runs if name is None or run.info.run_name == name]
        self.status, self.settings, self.facts = run.info.status, run.data.params, run.data.tags
        histories = {metric: client.get_metric_history(run.info.run_id, metric) for metric in run.data.metrics}
        self.numbers = {metric: [(entry.step, entry.value) for entry in history] for metric, history in histories.items()}
        self.files = {file.path for file in client.list_artifacts(run.info.run_id)}

    def _read_tensorboard(self, address, group, name):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        (folder,) = Path(address, group, name or "").iterdir()
        reader = EventAccumulator(str(folder)).Reload()
        content = reader.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        hparams = HParamsPluginData.FromString(content).session_start_info.hparams
        self.settings = self.facts = {name: value.string_value for name, value in hparams.items()}
        self.numbers = {name: [(e.step, e.value) for e in reader.Scalars(name)] for name in reader.Tags()["scalars"]}
        self.numbers.pop("hp_metric", None)
        self.status = None
        self.files = {path.name for path in (folder / "artifacts").glob("*")}
