"""Model directories with damaged bytes: one clear error, or a model that predicts numbers; never a crash, in little time."""

import json
import time
import warnings

import numpy as np
import pytest
from saved_models import FAST, X, contents, with_checksums, y

from bayesify.errors import BayesifyError, ModelFileError
from bayesify.estimators import BayesianRegressor
from bayesify.persistence import load_model, save_model

pytestmark = pytest.mark.slow
FILES = ["config.json", "weights.safetensors", "preprocessing.skops"]
MUTATIONS = 120  # of every file


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "m"
    save_model(BayesianRegressor(**FAST).fit(X, y), directory)
    return contents(directory)


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """One seeded damage: a flipped bit, other bytes, a cut, a repeated or a missing part."""
    changed, kind = bytearray(content), random.integers(5)
    start = int(random.integers(len(content)))
    length = int(random.integers(1, 64))
    if kind == 0:
        changed[start] ^= 1 << int(random.integers(8))
    elif kind == 1:
        part = bytes(random.integers(0, 256, length, dtype=np.uint8))
        changed[start : start + length] = part
    elif kind == 2:
        del changed[start:]
    elif kind == 3:
        changed[start:start] = changed[start : start + length]
    else:
        del changed[start : start + length]
    return bytes(changed)


def parsed(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return content


def write(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes_are_refused(original, tmp_path, name):
    random = np.random.default_rng(FILES.index(name))
    for _ in range(MUTATIONS):
        damaged = mutated(original[name], random)
        if damaged == original[name] or (name == "config.json" and parsed(damaged) == parsed(original[name])):
            continue  # such as another number of spaces
        write(tmp_path / "m", original | {name: damaged})
        with pytest.raises(ModelFileError, match=r"m(/|\b)"):
            load_model(tmp_path / "m")


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes_with_valid_checksums(original, tmp_path, name):
    random = np.random.default_rng(10 + FILES.index(name))
    refused, slowest = 0, 0.0
    for number in range(MUTATIONS):
        write(tmp_path / "m", with_checksums(original | {name: mutated(original[name], random)}))
        started = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                predictions = load_model(tmp_path / "m").predict(X)
        except ModelFileError as error:
            assert "m" in str(error), number  # noqa: PT017
            refused += 1
        except BayesifyError:  # inputs that a damaged scale makes infinite
            refused += 1
        else:
            assert np.isfinite(predictions).all(), number
        slowest = max(slowest, time.process_time() - started)
    assert refused > MUTATIONS / 4
    assert slowest < 10
