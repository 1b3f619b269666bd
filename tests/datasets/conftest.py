"""Benchmark data in temporary folders, and a local file server instead of the internet."""

import functools
import http.server
import threading

import pytest

from bayesify.datasets.data_files import data_dirs, find_file


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Empty data and cache folders (data, cache); no other data folder is visible."""
    (tmp_path / "data").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("BAYESIFY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "data", tmp_path / "home" / "bayesify" / "data"


class Server:
    """Serves the files of a folder, and records the requested paths."""

    def __init__(self, folder, url):
        self.folder, self.url, self.requests = folder, url, []

    def offer(self, name, content):
        """Serve a file and return its address."""
        (self.folder / name).write_bytes(content)
        return f"{self.url}/{name}"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A local file server that runs during the test."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code="-", size="-"):
            result.requests.append(self.path.removeprefix("/"))

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as running:
        result = Server(folder, f"http://127.0.0.1:{running.server_port}")
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield result
        running.shutdown()


@pytest.fixture
def real_data():
    """Returns the path of a real benchmark file, or skips the test if it is missing."""

    def file(path):
        local = find_file(path, data_dirs())
        if local is None:
            pytest.skip(f"{path} is missing: set BAYESIFY_DATA to the folder of the benchmark data")
        return local

    return file
