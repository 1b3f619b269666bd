"""UCI sets: the stored standard splits, refused files, and every way to download them, with a server on this machine."""

import dataclasses
import inspect
import re

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets

from bayesify.data import UCI, checksum, load_uci
from bayesify.data.benchmarks.uci_sources import SETS

REGRESSION = ("boston", "concrete", "kin8nm", "naval", "power-plant", "protein", "yacht")
STORED = [(name, i) for name in REGRESSION for i in range(5 if name == "protein" else 20)]
X = np.array([[0.1, 2.0], [3.5, -4e-3], [5.0, 6.0], [7.0, 8.0]])
Y = np.array([0.0, 1.0, 1.0, 0.0])


def _known(source, X, y, **changes):
    """A source that has these values, by what it says of others."""
    with pytest.raises(ValueError, match="the order of its rows") as error:
        dataclasses.replace(source, sha256="").verify(X, y)
    sha256 = re.findall("[0-9a-f]{64}", str(error.value))
    assert len(sha256) == 1
    return dataclasses.replace(source, sha256=sha256[0], columns=X.shape[1], urls=(), openml=None, absurd=(), **changes)


@pytest.fixture
def offer(monkeypatch):
    """Put a set of our own in the place of a known one."""

    def place(name, X=X, y=Y, **changes):
        source = dataclasses.replace(_known(SETS[name], X, y), **changes)
        monkeypatch.setitem(SETS, name, source)
        return source

    return place


@pytest.fixture
def openml(monkeypatch):
    """OpenML as it answers through scikit-learn; gives what it was asked."""
    asked = []
    signature = inspect.signature(sklearn.datasets.fetch_openml)

    def place(data, target):
        def fetch(**arguments):
            asked.append(signature.bind(**arguments).arguments)
            return sklearn.utils.Bunch(data=data, target=target)

        monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
        return asked

    return place


def _save(folder, source, **arrays):
    path = folder / source.path
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


class TestRealData:
    @pytest.mark.parametrize(("name", "i"), STORED, ids=[f"{name}-{i}" for name, i in STORED])
    def test_splits_are_the_stored_ones(self, name, i, real_data):
        path = real_data(SETS[name].path)
        with np.load(path) as stored:
            if f"split_{i}_train" not in stored:
                pytest.skip("this copy was downloaded and has no stored splits")
            data = load_uci(name)
            assert data.splits == stored["n_splits"]
            train, test = data.split(i)
            assert train.dtype == test.dtype == np.int64
            np.testing.assert_array_equal(train, stored[f"split_{i}_train"])
            np.testing.assert_array_equal(test, stored[f"split_{i}_test"])

    @pytest.mark.parametrize("name", [name for name in SETS if name != "eeg"])
    def test_values(self, name, real_data):
        with np.load(real_data(SETS[name].path)) as stored:
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

    def test_eeg_without_the_absurd_rows(self, real_data):
        with np.load(real_data("uci-class/eeg.npz")) as stored:
            X, y = stored["X"], stored["y"]
        data = load_uci("eeg")
        sane = np.abs(X).max(axis=1) < 1e4
        assert np.flatnonzero(~sane).tolist() == [898, 10386, 11509]
        np.testing.assert_array_equal(data.X, X[sane])
        np.testing.assert_array_equal(data.y, y[sane])
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

    def test_further_ones_go_on_where_the_standard_ones_end(self):
        data = UCI("toy", np.zeros((40, 1)), np.zeros(40), None, 2)
        random = np.random.RandomState(1)
        for i in range(6):
            np.testing.assert_array_equal(np.concatenate(data.split(i)), random.permutation(40))

    @pytest.mark.parametrize("i", [-1, 1.0, None, True, "0"])
    def test_bad_number(self, i):
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

    def test_by_the_variable(self, folders, offer, monkeypatch):
        _save(folders[0], offer("yacht"), X=X, y=Y)
        monkeypatch.setenv("BAYESIFY_DATA", str(folders[0]))
        np.testing.assert_array_equal(load_uci("yacht").X, X)

    def test_labels_and_absurd_rows(self, folders, offer):
        source = offer("eeg", absurd=(0, 2))
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
    def test_other_values_are_refused(self, folders, offer, arrays):
        path = _save(folders[0], offer("yacht"), **arrays)
        with pytest.raises(ValueError, match="is damaged: its values or the order of its rows are not the published ones") as error:
            load_uci("yacht", folders[0])
        assert str(path) in str(error.value)

    def test_what_cannot_be_read_is_refused(self, folders, offer):
        source = offer("yacht")
        path = _save(folders[0], source, X=X, y=Y)
        whole = path.read_bytes()
        middle = whole.index(X.tobytes())
        broken = [b"", b"no archive", whole[:-30], whole[:60], whole[:middle] + b"\xff" + whole[middle + 1 :]]
        for content in broken:
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"is damaged: it cannot be read .*; delete it"):
                load_uci("yacht", folders[0])
        _save(folders[0], source, X=X)
        with pytest.raises(ValueError, match="y is not a file in the archive"):
            load_uci("yacht", folders[0])
        _save(folders[0], source, X=np.array([{}]), y=Y)
        with pytest.raises(ValueError, match="allow_pickle=False"):
            load_uci("yacht", folders[0])

    @pytest.mark.parametrize("name", ["year", "mnist", "", None, ["yacht"]])
    def test_unknown_name(self, name):
        with pytest.raises(ValueError, match=r"name must be one of 'boston', .* 'eeg', got "):
            load_uci(name)

    def test_missing_folder(self, folders):
        with pytest.raises(NotADirectoryError, match="data_dir is 'nowhere'"):
            load_uci("yacht", "nowhere")


class TestDownload:
    def test_text(self, folders, offer, server):
        given, cache = folders
        # as they are published: blanks, tabs, exponents; naval has a second target, which is left out
        text = b"  1.0000e-01   2 0.0 9\n\n3.5\t-4e-3\t1 \t9\n5.0 6.0 1.00 9\n7 8 0 9\n"
        source = offer("naval", urls=(server.offer("data.txt", text),))
        data = load_uci("naval", given)
        np.testing.assert_array_equal(data.X, X)
        np.testing.assert_array_equal(data.y, Y)
        assert [path for path in cache.rglob("*") if path.is_file()] == [cache / source.path]
        np.testing.assert_array_equal(load_uci("naval", given).X, X)
        assert server.asked == ["data.txt"]

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

    def test_another_order_is_refused(self, folders, offer, server):
        url = server.offer("data.txt", b"3.5 -4e-3 1\n0.1 2 0\n5 6 1\n7 8 0\n")
        offer("yacht", urls=(url,))
        with pytest.raises(FileNotFoundError, match=r"uci/yacht.npz is in none of") as error:
            load_uci("yacht")
        assert f"{url}: ValueError: its values or the order of its rows are not the published ones: X (4, 2)" in str(error.value)
        assert "loading the set on a machine with internet makes the file there" in str(error.value)
        assert not list(folders[1].iterdir())

    @pytest.mark.parametrize(
        "content", [b"", b"<html>moved</html>", b"1\n2\n", b"\xff\xfe\x00"], ids=["empty", "page", "column", "binary"]
    )
    def test_what_is_no_table_is_refused(self, folders, offer, server, content):
        for name in ("yacht", "letter", "eeg"):
            offer(name, urls=(server.offer("data", content),))
            with pytest.raises(FileNotFoundError, match=f"{server.url}/data: "):
                load_uci(name)
        assert not list(folders[1].iterdir())

    def test_openml_comes_last(self, folders, offer, server, openml):
        # OpenML has categories where the values are whole numbers, and may have further columns
        table = pd.DataFrame({"a": pd.Series(["0.1", "3.5", "5", "7"], dtype="category"), "b": X[:, 1], "c": [1, 1, 1, 1]})
        asked = openml(table, pd.Series(Y))
        offer("naval", urls=(f"{server.url}/absent",), openml=5)
        data = load_uci("naval")
        np.testing.assert_array_equal(data.X, X)
        np.testing.assert_array_equal(data.y, Y)
        assert (folders[1] / "uci" / "naval-propulsion-plant.npz").is_file()
        assert [(each["data_id"], each["target_column"]) for each in asked] == [(5, "gt_compressor_decay_state_coefficient")]
        assert server.asked == ["absent"]
        load_uci("naval")
        assert len(asked) == 1

    def test_openml_labels(self, folders, offer, openml):
        openml(pd.DataFrame(X), pd.Series(["1", "2", "2", "1"], dtype="category"))
        offer("eeg", openml=1471)
        assert load_uci("eeg").y.tolist() == [0, 1, 1, 0]

    def test_openml_with_other_rows_is_refused(self, folders, offer, openml):
        openml(pd.DataFrame(X[::-1]), pd.Series(Y[::-1]))
        offer("boston", openml=531)
        with pytest.raises(FileNotFoundError, match=r"www.openml.org/d/531: ValueError: its values or the order of its rows"):
            load_uci("boston")

    def test_openml_out_of_reach(self, folders, offer, monkeypatch):
        def fetch(**arguments):
            raise OSError("no route to host")

        monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
        offer("boston", openml=531)
        with pytest.raises(FileNotFoundError, match=r"https://www.openml.org/d/531: OSError: no route to host"):
            load_uci("boston")

    def test_every_set_has_a_source(self):
        for source in SETS.values():
            assert source.urls
            assert all(url.startswith("https://") for url in source.urls)


def test_checksum_does_not_depend_on_the_folder(folders):
    assert checksum("yacht") == checksum("yacht", folders[0])
    assert re.fullmatch("[0-9a-f]{64}", checksum("yacht"))
