"""Where jobs run: in this process, or as tasks of a Ray cluster, which provides scheduling, retries and fault tolerance."""

from bayesify.jobs.cluster import Event, run_jobs
from bayesify.jobs.where import RayCluster
from bayesify.jobs.worker import Channel

__all__ = ["Channel", "Event", "RayCluster", "run_jobs"]
