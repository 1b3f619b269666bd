"""Where benchmark data are looked for, what is refused, and that a download is all or nothing."""

import gzip
import hashlib
import sys
from pathlib import Path

import pytest

from bayesify.data.benchmarks.store import File, cache_dir, data_dirs, find, obtain, read

CONTENT = b"all there is" * 100
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def _put(folder, name, content):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def _files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


class TestFolders:
    def test_the_cache_alone(self, folders):
        assert data_dirs() == (folders[1],) == (cache_dir(),)

    def test_order(self, folders, tmp_path, monkeypatch):
        given, cache = folders
        beside = tmp_path / "shared" / "data"
        beside.mkdir(parents=True)
        assert data_dirs() == (Path("../shared/data"), cache)
        named = tmp_path / "named"
        named.mkdir()
        monkeypatch.setenv("BAYESIFY_DATA", str(named))
        assert data_dirs() == (named, cache)
        assert data_dirs(given) == data_dirs(str(given)) == (given, cache)

    def test_the_home_folder(self, folders, monkeypatch):
        monkeypatch.setenv("HOME", str(folders[0]))
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_dir() == folders[0] / ".cache" / "bayesify" / "data"
        assert data_dirs("~") == (folders[0], cache_dir())

    def test_missing(self, folders, monkeypatch):
        with pytest.raises(NotADirectoryError, match=r"data_dir is 'nowhere', which is no folder .* uci-class/ and images/"):
            data_dirs("nowhere")
        monkeypatch.setenv("BAYESIFY_DATA", "gone")
        with pytest.raises(NotADirectoryError, match="BAYESIFY_DATA is 'gone'"):
            data_dirs()
        assert data_dirs(folders[0])[0] == folders[0]

    def test_the_first_that_has_the_file(self, folders):
        given, cache = folders
        assert find("a/b", data_dirs(given)) is None
        (given / "a" / "b").mkdir(parents=True)  # a folder is no file
        assert find("a/b", data_dirs(given)) is None
        inner = _put(cache, "a/b", b"")
        assert find("a/b", data_dirs(given)) == inner
        (given / "a" / "b").rmdir()
        assert find("a/b", data_dirs(given)) == inner
        assert find("a/b", (_put(given, "a/b", b"").parents[1], cache)) == given / "a/b"


class TestChecksums:
    @pytest.mark.parametrize("level", [1, 9])
    def test_packing_does_not_matter(self, folders, level):
        _put(folders[0], "x.gz", gzip.compress(CONTENT, level, mtime=level))
        assert read(File("x.gz", SHA256), data_dirs(folders[0])) == CONTENT

    def test_archives_are_taken_as_they_are(self, folders):
        packed = gzip.compress(CONTENT)
        _put(folders[0], "x.tar.gz", packed)
        assert read(File("x.tar.gz", hashlib.sha256(packed).hexdigest()), data_dirs(folders[0])) == packed

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (gzip.compress(CONTENT)[:-20], "cannot be unpacked"),
            (gzip.compress(CONTENT)[:5], "cannot be unpacked"),
            (CONTENT, "cannot be unpacked"),
            (b"", f"SHA-256 [0-9a-f]* instead of {SHA256}"),
            (gzip.compress(CONTENT + b"!"), f"SHA-256 [0-9a-f]* instead of {SHA256}"),
        ],
        ids=["cut", "header", "unpacked", "empty", "longer"],
    )
    def test_damaged_files_are_refused(self, folders, content, message):
        path = _put(folders[0], "x.gz", content)
        with pytest.raises(ValueError, match=f"x.gz is damaged: .*{message}.*; delete it") as error:
            read(File("x.gz", SHA256, ("http://127.0.0.1:9/x.gz",)), data_dirs(folders[0]))
        assert str(path) in str(error.value)
        assert not folders[1].exists()


class TestDownloads:
    def test_once(self, folders, server):
        given, cache = folders
        file = File("images/x.gz", SHA256, (server.offer("x.gz", gzip.compress(CONTENT)),))
        assert read(file, data_dirs(given)) == CONTENT
        assert _files(cache) == [cache / "images" / "x.gz"]
        assert [path.name for path in cache.iterdir()] == ["images"]
        assert read(file, data_dirs()) == CONTENT
        assert server.asked == ["x.gz"]
        assert not _files(given)

    def test_the_next_address(self, folders, server):
        urls = (f"{server.url}/absent", server.offer("other", b"other"), server.offer("x", CONTENT))
        assert read(File("x", SHA256, urls), data_dirs()) == CONTENT
        assert server.asked[-1] == "x"
        assert _files(folders[1]) == [folders[1] / "x"]

    def test_the_error_says_what_to_do(self, folders, server):
        given, cache = folders
        urls = (f"{server.url}/absent", server.offer("other", b"other"), "http://127.0.0.1:9/x")
        with pytest.raises(FileNotFoundError) as error:
            read(File("uci/x", SHA256, urls), data_dirs(given))
        message = str(error.value)
        assert f"uci/x is in none of {given}, {cache}" in message
        assert f"{urls[0]}: HTTPError: 404" in message
        assert f"{urls[1]}: ValueError: its content has the SHA-256 " in message
        assert f"{urls[2]}: ConnectionError: " in message
        assert f"Put it at {cache / 'uci/x'}, or below a folder of your own that data_dir or BAYESIFY_DATA names" in message
        assert not list(cache.iterdir())

    def test_without_a_source(self, folders):
        with pytest.raises(FileNotFoundError, match=r"x is in none of .*\. It has no public source\.\nPut it at "):
            read(File("x", SHA256), data_dirs(folders[0]))

    def test_without_pooch(self, folders, monkeypatch):
        monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(FileNotFoundError, match=r'downloading needs pooch: pip install "bayesify\[data\]"'):
            read(File("x", SHA256, ("http://127.0.0.1:9/x",)), data_dirs())

    def test_a_cache_that_cannot_be_written(self, folders, server):
        folders[1].parent.mkdir(parents=True)
        folders[1].write_text("a file")
        with pytest.raises(FileNotFoundError, match="FileExistsError"):
            read(File("x", SHA256, (server.offer("x", CONTENT),)), data_dirs())
        assert not server.asked

    def test_interrupted(self, folders):
        def interrupted(path):
            path.write_bytes(CONTENT[:10])
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            obtain("uci/x", {"here": interrupted}, ())
        assert not list(folders[1].iterdir())
