"""A Ray cluster on this machine for tests: small, on loopback, and ended with the test."""

import contextlib
import os
import sys

MEMORY = 100 * 2**20  # of the object store, in bytes


@contextlib.contextmanager
def ray_cluster(*cpus, client_port=None):
    """A cluster with a machine per entry of `cpus`, the first one with the head; which inherit the path of modules."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", ""), os.pathsep.join(path for path in sys.path if path)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's 15, other tests leave its jobs no time
    head, *others = cpus
    ports = {} if client_port is None else {"ray_client_server_port": client_port}
    common = {"object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head, "include_dashboard": False, **common, **ports})
    try:
        for count in others:
            cluster.add_node(num_cpus=count, **common)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ["PYTHONPATH"] = before


def kill_machine(cluster, node):
    """End a machine of the cluster at once: its server, and the processes of its jobs, which otherwise live for seconds more."""
    import psutil  # Ray brings it

    server = psutil.Process(node.all_processes["raylet"][0].process.pid)
    jobs = server.children(recursive=True)
    cluster.remove_node(node, allow_graceful=False)
    for process in jobs:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(jobs, timeout=30)
