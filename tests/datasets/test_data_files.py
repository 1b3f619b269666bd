"""Searched folders, rejected files, and atomic downloads."""

import gzip
import hashlib
import sys
from pathlib import Path

import pytest

from bayesify.datasets.data_files import File, cache_dir, data_dirs, fetch, find_file, read_file
from bayesify.errors import DataError

CONTENT = b"all there is" * 100
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def _put(folder, name, content):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def _files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


class TestFolders:
    def test_default_is_the_cache(self, folders):
        assert data_dirs() == (folders[1],) == (cache_dir(),)

    def test_precedence(self, folders, tmp_path, monkeypatch):
        data, cache = folders
        shared = tmp_path / "shared" / "data"
        shared.mkdir(parents=True)
        assert data_dirs() == (Path("../shared/data"), cache)
        named = tmp_path / "named"
        named.mkdir()
        monkeypatch.setenv("BAYESIFY_DATA", str(named))
        assert data_dirs() == (named, cache)
        assert data_dirs(data) == data_dirs(str(data)) == (data, cache)

    def test_home_folder(self, folders, monkeypatch):
        monkeypatch.setenv("HOME", str(folders[0]))
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_dir() == folders[0] / ".cache" / "bayesify" / "data"
        assert data_dirs("~") == (folders[0], cache_dir())

    def test_rejects_a_missing_folder(self, folders, monkeypatch):
        with pytest.raises(
            NotADirectoryError,
            match=r"data_dir must be the folder of uci/.*, got 'nowhere', which is not a folder",
        ):
            data_dirs("nowhere")
        monkeypatch.setenv("BAYESIFY_DATA", "gone")
        with pytest.raises(NotADirectoryError, match=r"BAYESIFY_DATA must be .*, got 'gone'"):
            data_dirs()
        assert data_dirs(folders[0])[0] == folders[0]

    def test_first_folder_with_the_file(self, folders):
        data, cache = folders
        assert find_file("a/b", data_dirs(data)) is None
        (data / "a" / "b").mkdir(parents=True)  # a folder is not a file
        assert find_file("a/b", data_dirs(data)) is None
        inner = _put(cache, "a/b", b"")
        assert find_file("a/b", data_dirs(data)) == inner
        (data / "a" / "b").rmdir()
        assert find_file("a/b", data_dirs(data)) == inner
        assert find_file("a/b", (_put(data, "a/b", b"").parents[1], cache)) == data / "a/b"


class TestChecksums:
    @pytest.mark.parametrize("level", [1, 9])
    def test_compression_level_does_not_matter(self, folders, level):
        _put(folders[0], "x.gz", gzip.compress(CONTENT, level, mtime=level))
        assert read_file(File("x.gz", SHA256), data_dirs(folders[0])) == CONTENT

    def test_archives_are_not_decompressed(self, folders):
        packed = gzip.compress(CONTENT)
        _put(folders[0], "x.tar.gz", packed)
        assert read_file(File("x.tar.gz", hashlib.sha256(packed).hexdigest()), data_dirs(folders[0])) == packed

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (gzip.compress(CONTENT)[:-20], "cannot be decompressed"),
            (gzip.compress(CONTENT)[:5], "cannot be decompressed"),
            (CONTENT, "cannot be decompressed"),
            (b"", f"SHA-256 [0-9a-f]* instead of {SHA256}"),
            (gzip.compress(CONTENT + b"!"), f"SHA-256 [0-9a-f]* instead of {SHA256}"),
        ],
        ids=["cut", "header", "uncompressed", "empty", "longer"],
    )
    def test_rejects_damaged_files(self, folders, content, message):
        path = _put(folders[0], "x.gz", content)
        with pytest.raises(DataError, match=f"x.gz is damaged: .*{message}.*; delete it") as error:
            read_file(File("x.gz", SHA256, ("http://127.0.0.1:9/x.gz",)), data_dirs(folders[0]))
        assert str(path) in str(error.value)
        assert not folders[1].exists()


class TestDownloads:
    def test_downloads_once(self, folders, server):
        data, cache = folders
        file = File("images/x.gz", SHA256, (server.offer("x.gz", gzip.compress(CONTENT)),))
        assert read_file(file, data_dirs(data)) == CONTENT
        assert _files(cache) == [cache / "images" / "x.gz"]
        assert [path.name for path in cache.iterdir()] == ["images"]
        assert read_file(file, data_dirs()) == CONTENT
        assert server.requests == ["x.gz"]
        assert not _files(data)

    def test_falls_back_to_the_next_address(self, folders, server):
        urls = (f"{server.url}/absent", server.offer("other", b"other"), server.offer("x", CONTENT))
        assert read_file(File("x", SHA256, urls), data_dirs()) == CONTENT
        assert server.requests[-1] == "x"
        assert _files(folders[1]) == [folders[1] / "x"]

    def test_error_lists_all_failures_and_the_remedy(self, folders, server):
        data, cache = folders
        urls = (f"{server.url}/absent", server.offer("other", b"other"), "http://127.0.0.1:9/x")
        with pytest.raises(FileNotFoundError) as error:
            read_file(File("uci/x", SHA256, urls), data_dirs(data))
        message = str(error.value)
        assert f"uci/x was not found in {data}, {cache}" in message
        assert f"{urls[0]}: HTTPError: 404" in message
        assert f"{urls[1]}: DataError: its content has the SHA-256 " in message
        assert f"{urls[2]}: ConnectionError: " in message
        assert f"Put it at {cache / 'uci/x'}, or at the same path in a folder given as data_dir or BAYESIFY_DATA" in message
        assert not list(cache.iterdir())

    def test_without_a_source(self, folders):
        with pytest.raises(FileNotFoundError, match=r"x was not found in .*\. It has no public source\.\nPut it at "):
            read_file(File("x", SHA256), data_dirs(folders[0]))

    def test_without_pooch(self, folders, monkeypatch):
        monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(FileNotFoundError, match=r'downloading requires pooch; install it with: pip install "bayesify\[data\]"'):
            read_file(File("x", SHA256, ("http://127.0.0.1:9/x",)), data_dirs())

    def test_cache_that_is_not_writable(self, folders, server):
        folders[1].parent.mkdir(parents=True)
        folders[1].write_text("a file")
        with pytest.raises(FileNotFoundError, match="FileExistsError"):
            read_file(File("x", SHA256, (server.offer("x", CONTENT),)), data_dirs())
        assert not server.requests

    def test_leaves_nothing_behind_when_interrupted(self, folders):
        def interrupted(path):
            path.write_bytes(CONTENT[:10])
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch("uci/x", {"here": interrupted}, ())
        assert not list(folders[1].iterdir())

    def test_bugs_are_not_reported_as_failed_downloads(self, folders):
        def bug(path):
            raise AttributeError("no such attribute")

        with pytest.raises(AttributeError):
            fetch("uci/x", {"here": bug}, ())
        assert not list(folders[1].iterdir())
