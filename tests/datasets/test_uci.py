"""UCI data sets: stored standard splits, rejected files, and downloads from a local server."""

import dataclasses
import inspect
import re

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets

from bayesify.datasets import UCI, checksum, load_uci
from bayesify.datasets.uci_sources import SOURCES
from bayesify.errors import DataError

REGRESSION = ("boston", "concrete", "kin8nm", "naval", "power-plant", "protein", "yacht")
STORED = [(name, i) for name in REGRESSION for i in range(5 if name == "protein" else 20)]
X = np.array([[0.1, 2.0], [3.5, -4e-3], [5.0, 6.0], [7.0, 8.0]])
Y = np.array([0.0, 1.0, 1.0, 0.0])


def _known(source, X, y, **changes):
    """The source with the checksum of these values, taken from its error message."""
    with pytest.raises(DataError, match="the order of its rows") as error:
        dataclasses.replace(source, sha256="").verify(X, y)
    sha256 = re.findall("[0-9a-f]{64}", str(error.value))
    assert len(sha256) == 1
    return dataclasses.replace(source, sha256=sha256[0], columns=X.shape[1], urls=(), openml=None, excluded=(), **changes)


@pytest.fixture
def offer(monkeypatch):
    """Replace a known data set with a toy one."""

    def replace(name, X=X, y=Y, **changes):
        source = dataclasses.replace(_known(SOURCES[name], X, y), **changes)
        monkeypatch.setitem(SOURCES, name, source)
        return source

    return replace


@pytest.fixture
def openml(monkeypatch):
    """Fake of scikit-learn's OpenML client; records the requests."""
    requests = []
    signature = inspect.signature(sklearn.datasets.fetch_openml)

    def replace(data, target):
        def fetch(**arguments):
            requests.append(signature.bind(**arguments).arguments)
            return sklearn.utils.Bunch(data=data, target=target)

        monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
        return requests

    return replace


def _save(folder, source, **arrays):
    path = folder / source.path
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


class TestRealData:
    @pytest.mark.parametrize(("name", "i"), STORED, ids=[f"{name}-{i}" for name, i in STORED])
    def test_splits_are_the_stored_ones(self, name, i, real_data):
        path = real_data(SOURCES[name].path)
        with np.load(path) as stored:
            if f"split_{i}_train" not in stored:
                pytest.skip("this copy was downloaded and has no stored splits")
            data = load_uci(name)
            assert data.splits == stored["n_splits"]
            train, test = data.split(i)
            assert train.dtype == test.dtype == np.int64
            np.testing.assert_array_equal(train, stored[f"split_{i}_train"])
            np.testing.assert_array_equal(test, stored[f"split_{i}_test"])

    @pytest.mark.parametrize("name", [name for name in SOURCES if name != "eeg"])
    def test_values(self, name, real_data):
        with np.load(real_data(SOURCES[name].path)) as stored:
            data = load_uci(name)
            assert (data.name, data.X.dtype) == (name, np.float64)
            np.testing.assert_array_equal(data.X, stored["X"])
            np.testing.assert_array_equal(data.y, stored["y"])
            if name == "letter":
                assert data.y.dtype == np.int64
                assert data.classes == tuple(stored["classes"])
                assert data.splits == 0
            else:
                assert data.y.dtype == np.float64
                assert data.classes is None

    def test_eeg_without_the_excluded_rows(self, real_data):
        with np.load(real_data("uci-class/eeg.npz")) as stored:
            X, y = stored["X"], stored["y"]
        data = load_uci("eeg")
        typical = np.abs(X).max(axis=1) < 1e4
        assert np.flatnonzero(~typical).tolist() == [898, 10386, 11509]
        np.testing.assert_array_equal(data.X, X[typical])
        np.testing.assert_array_equal(data.y, y[typical])
        assert data.y.dtype == np.int64
        assert data.classes == ("eye open", "eye closed")
        assert data.X.std(axis=0).max() < 50
        assert X.std(axis=0).max() > 1000


class TestSplits:
    @pytest.mark.parametrize(("rows", "train"), [(10, 9), (15, 14), (506, 455), (1030, 927), (1, 1), (4, 4)])
    def test_sizes_and_cover(self, rows, train):
        data = UCI("toy", np.zeros((rows, 1)), np.zeros(rows), None, 20)
        for i in (0, 19, 25):
            first, last = data.split(i)
            assert len(first) == train
            assert sorted([*first, *last]) == list(range(rows))

    def test_further_splits_continue_the_sequence(self):
        data = UCI("toy", np.zeros((40, 1)), np.zeros(40), None, 2)
        random = np.random.RandomState(1)
        for i in range(6):
            np.testing.assert_array_equal(np.concatenate(data.split(i)), random.permutation(40))

    @pytest.mark.parametrize("i", [-1, 1.0, None, True, "0"])
    def test_rejects_invalid_indices(self, i):
        with pytest.raises(ValueError, match="i must be a whole number of at least 0, got "):
            UCI("toy", np.zeros((3, 1)), np.zeros(3), None, 20).split(i)


class TestLoading:
    def test_from_a_folder(self, folders, offer):
        _save(folders[0], offer("yacht"), X=X, y=Y)
        data = load_uci("yacht", folders[0])
        assert isinstance(data, UCI)
        np.testing.assert_array_equal(data.X, X)
        np.testing.assert_array_equal(data.y, Y)
        assert (data.classes, data.splits) == (None, 20)

    def test_environment_variable(self, folders, offer, monkeypatch):
        _save(folders[0], offer("yacht"), X=X, y=Y)
        monkeypatch.setenv("BAYESIFY_DATA", str(folders[0]))
        np.testing.assert_array_equal(load_uci("yacht").X, X)

    def test_labels_and_excluded_rows(self, folders, offer):
        source = offer("eeg", excluded=(0, 2))
        _save(folders[0], source, X=X, y=Y.astype(np.uint8))
        data = load_uci("eeg", folders[0])
        assert data.y.dtype == np.int64
        assert data.y.tolist() == [1, 0]
        np.testing.assert_array_equal(data.X, X[[1, 3]])

    @pytest.mark.parametrize(
        "arrays",
        [
            {"X": X[::-1], "y": Y[::-1]},
            {"X": X + np.eye(4, 2) * 1e-12, "y": Y},
            {"X": X, "y": 1 - Y},
            {"X": X[:3], "y": Y[:3]},
            {"X": X.reshape(2, 4), "y": Y},
        ],
        ids=["order", "value", "target", "rows", "shape"],
    )
    def test_rejects_other_values(self, folders, offer, arrays):
        path = _save(folders[0], offer("yacht"), **arrays)
        with pytest.raises(DataError, match="is damaged: its values or the order of its rows are not the published ones") as error:
            load_uci("yacht", folders[0])
        assert str(path) in str(error.value)

    def test_rejects_unreadable_files(self, folders, offer):
        source = offer("yacht")
        path = _save(folders[0], source, X=X, y=Y)
        intact = path.read_bytes()
        middle = intact.index(X.tobytes())
        broken = [b"", b"no archive", intact[:-30], intact[:60], intact[:middle] + b"\xff" + intact[middle + 1 :]]
        for content in broken:
            path.write_bytes(content)
            with pytest.raises(DataError, match=r"is damaged: it cannot be read .*; delete it"):
                load_uci("yacht", folders[0])
        _save(folders[0], source, X=X)
        with pytest.raises(DataError, match="y is not a file in the archive"):
            load_uci("yacht", folders[0])
        _save(folders[0], source, X=np.array([{}]), y=Y)
        with pytest.raises(DataError, match="allow_pickle=False"):
            load_uci("yacht", folders[0])

    @pytest.mark.parametrize("name", ["year", "mnist", "", None, ["yacht"]])
    def test_unknown_name(self, name):
        with pytest.raises(ValueError, match=r"name must be one of 'boston', .* 'eeg', got "):
            load_uci(name)

    def test_missing_folder(self, folders):
        with pytest.raises(NotADirectoryError, match="got 'nowhere'"):
            load_uci("yacht", "nowhere")


class TestDownload:
    def test_text(self, folders, offer, server):
        data_dir, cache = folders
        # as published: blanks, tabs, exponents; the second target of naval is ignored
        text = b"  1.0000e-01   2 0.0 9\n\n3.5\t-4e-3\t1 \t9\n5.0 6.0 1.00 9\n7 8 0 9\n"
        source = offer("naval", urls=(server.offer("data.txt", text),))
        data = load_uci("naval", data_dir)
        np.testing.assert_array_equal(data.X, X)
        np.testing.assert_array_equal(data.y, Y)
        assert [path for path in cache.rglob("*") if path.is_file()] == [cache / source.path]
        np.testing.assert_array_equal(load_uci("naval", data_dir).X, X)
        assert server.requests == ["data.txt"]

    @pytest.mark.parametrize("header", [b"", b"Letter,1,2\n"], ids=["bare", "header"])
    def test_letters(self, folders, offer, server, header):
        inputs = np.array([[2.0, 8.0], [5.0, 12.0], [0.0, 0.0]])
        urls = (server.offer("letters", header + b"T,2,8\nI,5,12\nA,0,0\n"),)
        offer("letter", X=inputs, y=np.array([19.0, 8.0, 0.0]), urls=urls)
        data = load_uci("letter")
        np.testing.assert_array_equal(data.X, inputs)
        assert [(data.classes or ())[label] for label in data.y] == ["T", "I", "A"]

    def test_arff(self, folders, offer, server):
        text = b"@RELATION EEG_DATA\n\n@ATTRIBUTE AF3 NUMERIC\n@ATTRIBUTE eyeDetection {0,1}\n\n@DATA\n"
        rows = b"0.1,2,0\n3.5,-0.004,1\n5,6,1\n7,8,0\n"
        offer("eeg", urls=(server.offer("eeg.arff", text + rows),))
        np.testing.assert_array_equal(load_uci("eeg").X, X)
        assert load_uci("eeg").y.tolist() == [0, 1, 1, 0]

    def test_rejects_another_row_order(self, folders, offer, server):
        url = server.offer("data.txt", b"3.5 -4e-3 1\n0.1 2 0\n5 6 1\n7 8 0\n")
        offer("yacht", urls=(url,))
        with pytest.raises(FileNotFoundError, match=r"uci/yacht.npz was not found in") as error:
            load_uci("yacht")
        assert f"{url}: DataError: its values or the order of its rows are not the published ones: X (4, 2)" in str(error.value)
        assert "loading the data set on a machine with internet access creates the file there" in str(error.value)
        assert not list(folders[1].iterdir())

    @pytest.mark.parametrize(
        "content", [b"", b"<html>moved</html>", b"1\n2\n", b"\xff\xfe\x00"], ids=["empty", "page", "column", "binary"]
    )
    def test_rejects_text_that_is_not_a_table(self, folders, offer, server, content):
        for name in ("yacht", "letter", "eeg"):
            offer(name, urls=(server.offer("data", content),))
            with pytest.raises(FileNotFoundError, match=f"{server.url}/data: "):
                load_uci(name)
        assert not list(folders[1].iterdir())

    def test_openml_comes_last(self, folders, offer, server, openml):
        # OpenML may have categories instead of integers, and further columns
        table = pd.DataFrame({"a": pd.Series(["0.1", "3.5", "5", "7"], dtype="category"), "b": X[:, 1], "c": [1, 1, 1, 1]})
        requests = openml(table, pd.Series(Y))
        offer("naval", urls=(f"{server.url}/absent",), openml=5)
        data = load_uci("naval")
        np.testing.assert_array_equal(data.X, X)
        np.testing.assert_array_equal(data.y, Y)
        assert (folders[1] / "uci" / "naval-propulsion-plant.npz").is_file()
        assert [(each["data_id"], each["target_column"]) for each in requests] == [(5, "gt_compressor_decay_state_coefficient")]
        assert server.requests == ["absent"]
        load_uci("naval")
        assert len(requests) == 1

    def test_openml_labels(self, folders, offer, openml):
        openml(pd.DataFrame(X), pd.Series(["1", "2", "2", "1"], dtype="category"))
        offer("eeg", openml=1471)
        assert load_uci("eeg").y.tolist() == [0, 1, 1, 0]

    def test_rejects_openml_data_with_other_rows(self, folders, offer, openml):
        openml(pd.DataFrame(X[::-1]), pd.Series(Y[::-1]))
        offer("boston", openml=531)
        with pytest.raises(FileNotFoundError, match=r"www.openml.org/d/531: DataError: its values or the order of its rows"):
            load_uci("boston")

    def test_openml_unreachable(self, folders, offer, monkeypatch):
        def fetch(**arguments):
            raise OSError("no route to host")

        monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
        offer("boston", openml=531)
        with pytest.raises(FileNotFoundError, match=r"https://www.openml.org/d/531: OSError: no route to host"):
            load_uci("boston")

    def test_every_data_set_has_a_source(self):
        for source in SOURCES.values():
            assert source.urls
            assert all(url.startswith("https://") for url in source.urls)


def test_checksum_does_not_depend_on_the_folder(folders):
    assert checksum("yacht") == checksum("yacht", folders[0])
    assert re.fullmatch("[0-9a-f]{64}", checksum("yacht"))
