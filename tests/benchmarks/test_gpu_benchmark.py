"""benchmarks.gpu without a GPU: the same code on small networks, its file and its section of the page."""

import json
import sys

import pytest
from benchmarks import gpu, measure, page


@pytest.fixture
def results(tmp_path, monkeypatch):
    for module in (measure, page):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--quick", *arguments])
    gpu.main()


@pytest.mark.slow
def test_all_parts(results, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    run(monkeypatch)
    content = json.loads((results / "gpu.json").read_text())
    assert content["parts"].keys() == gpu.PARTS.keys()
    assert all(part["errors"] == {} for part in content["parts"].values())
    assert "`hadamard`\n" in page._gpu()


@pytest.mark.extended
def test_the_page_has_what_was_measured_and_what_failed(results, monkeypatch):
    assert "Not measured yet" in page._gpu()

    def fails(device, quick):
        raise RuntimeError("no kernel for this")

    monkeypatch.setitem(gpu.PARTS, "many", fails)
    with pytest.raises(SystemExit, match="no kernel"):
        run(monkeypatch, "--parts", "many", "hadamard")
    section = page._gpu()
    assert "all: RuntimeError: no kernel for this." in section
    assert "| transform 128 | `fwht` |" in section


def test_without_a_gpu_the_way_out_is_named(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--device cpu --quick" in capsys.readouterr().err


def test_the_time_is_bounded(results, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--minutes", "0", "--parts", "hadamard"])
    gpu.main()
    content = json.loads((results / "gpu.json").read_text())
    (part,) = content["parts"].values()
    assert part["results"] == {}
    assert "left out" in part["errors"]["all"]
