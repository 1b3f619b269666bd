"""Options that several commands share. Light: help and errors of usage are shown without PyTorch."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Data", "Decimal", "Encoding", "On", "Seed", "Separator", "Task", "Track"]

Data = Annotated[
    Path,
    typer.Argument(
        help="A table with a header row: .csv, .tsv, .txt, .json, .jsonl, .xlsx or .parquet; - reads text from standard input.",
        metavar="DATA",
        show_default=False,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option("--sep", help="Separator of the columns of text: a character, or tab or space.", show_default="detected"),
]
Encoding = Annotated[str | None, typer.Option(help="Encoding of text, such as utf-8.", show_default="detected")]
Decimal = Annotated[str | None, typer.Option(help="Decimal separator of text: . or ,", show_default="detected")]
On = Annotated[str, typer.Option("--on", help="local, ray (RAY_ADDRESS, or the cluster of this machine) or ray://HOST:PORT.")]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, max=2**32 - 1)]
Track = Annotated[
    str | None,
    typer.Option(help="Log to mlflow, mlflow:URI, tensorboard or tensorboard:FOLDER.", metavar="WHERE", show_default=False),
]


class Task(StrEnum):
    """The kind of model to fit."""

    auto = "auto"
    regression = "regression"
    classification = "classification"
