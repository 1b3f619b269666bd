"""Benchmark data in temporary folders, and a server of files in place of the internet."""

import functools
import http.server
import threading

import pytest

from bayesify.data.benchmarks.store import data_dirs, find


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A data folder and a cache that are empty, with nothing else in sight: (data, cache)."""
    (tmp_path / "data").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("BAYESIFY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "data", tmp_path / "home" / "bayesify" / "data"


class Server:
    """Serves the files of a folder, and lists the paths that were asked for."""

    def __init__(self, folder, url):
        self.folder, self.url, self.asked = folder, url, []

    def offer(self, name, content):
        """Serve a file; returns its address."""
        (self.folder / name).write_bytes(content)
        return f"{self.url}/{name}"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server on this machine that lives as long as the test."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code="-", size="-"):
            result.asked.append(self.path.removeprefix("/"))

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as running:
        result = Server(folder, f"http://127.0.0.1:{running.server_port}")
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield result
        running.shutdown()


@pytest.fixture
def real_data():
    """Gives a file of the real benchmark data; without it, the test is skipped."""

    def file(path):
        found = find(path, data_dirs())
        if found is None:
            pytest.skip(f"{path} is not here: set BAYESIFY_DATA to the folder of the benchmark data")
        return found

    return file
