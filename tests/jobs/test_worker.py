"""What a process of a cluster does, without a cluster."""

import pickle

import pytest
import torch

from bayesify.errors import ConfigurationError
from bayesify.jobs import worker
from bayesify.jobs.worker import Mailbox, check_versions, run_job, versions
from bayesify.native import switch


def test_other_versions_are_named():
    here = {"python": "3.11.7", "torch": "2.13.0", "bayesify": "0.1.0", "commit": "abc"}
    check_versions(here, here, "node-7")
    message = "this process has torch 2.13.0, commit abc, the machine node-7 of the cluster torch 2.9.0, commit unknown"
    with pytest.raises(ConfigurationError, match=message):
        check_versions(here, {**here, "torch": "2.9.0", "commit": ""}, "node-7")
    with pytest.raises(ConfigurationError, match="commit unknown"):  # of a version that did not tell
        check_versions(here, {name: here[name] for name in ("python", "torch", "bayesify")}, "node-7")


def test_a_job_with_other_versions_does_no_work():
    outcome = run_job(pytest.fail, None, 0, None, {**versions(), "torch": "1.0"}, 1)
    assert isinstance(outcome.error, ConfigurationError)
    assert "version mismatch: this process has torch 1.0" in str(outcome.error)


@pytest.mark.parametrize("native", [True, False])
def test_machines_must_draw_the_same_random_numbers(monkeypatch, native):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if native else None)
    here = versions()
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if not native else None)
    with pytest.raises(ConfigurationError, match=f"native operators {'on' if native else 'off'}, the machine"):
        check_versions(here, versions(), "node-7")


def test_errors_of_jobs_reach_the_caller_whatever_their_type(monkeypatch):
    monkeypatch.setattr(worker, "Channel", lambda job, mailbox: None)

    class OddError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def fails(argument, channel):
        raise OddError(argument, "two")

    threads = torch.get_num_threads()
    outcome = run_job(fails, "one", 0, None, versions(), threads)
    assert "one and two" in str(pickle.loads(pickle.dumps(outcome)).error)
    assert "in fails" in outcome.details
    assert run_job(lambda argument, channel: argument + 1, 1, 0, None, versions(), threads).result == 2


def test_messages_of_an_attempt_outlive_it():
    mailbox = Mailbox()
    assert mailbox.start(3, {}) == []
    mailbox.send(3, "first")
    mailbox.send(4, "another job's")
    mailbox.progress(3, 0.5)
    assert mailbox.start(3, {}) == ["first"]
    messages, shares = mailbox.read(1)
    assert [(job, kind) for job, kind, _ in messages] == [(3, "message"), (4, "message"), (3, "start")]
    assert (shares, mailbox.read(4)) == ({3: 0.5}, ([], {}))
