"""Where jobs run: in this process, or as tasks of a Ray cluster, which provides scheduling, retries and fault tolerance."""

from bayesify.jobs.cluster import Event, run_jobs
from bayesify.jobs.where import LOCAL, RayCluster, cluster_of
from bayesify.jobs.worker import Channel

__all__ = ["LOCAL", "Channel", "Event", "RayCluster", "cluster_of", "run_jobs"]
