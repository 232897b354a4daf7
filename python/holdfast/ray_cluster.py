"""Ray, as jobs use it: a connection, the nodes that are there and have this package, and functions that are sent to
them. Used by :mod:`holdfast.exchange`. Ray is imported when a job begins, so that the package does not need it
otherwise.
"""

import contextlib
import pickle
import socket

from . import _holdfast
from .errors import InvalidError, NotFoundError, RetryError, UnsupportedError

#: Ray's versions that this was tried with: from, and below.
RAY_VERSIONS = ((2, 40), (3, 0))
#: A node that takes no connection for so long is not where a receiver is started again.
CONNECT_S = 1.0


def connect(address):
    """Ray, connected: ``"local"`` starts one on this machine; a cluster that is connected already is used
    as it is. Returns the module, and whether this call connected it."""
    try:
        import ray
    except ImportError as e:
        raise UnsupportedError(
            "run a job on Ray: the package `ray` is not installed: pip install 'ray>=2.40,<3'"
        ) from e
    check_version(ray.__version__)
    if ray.is_initialized():
        return ray, False
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "warning"}
    if address == "local":
        # Nothing large is put there.
        ray.init(address="local", object_store_memory=128 << 20, **options)
    else:
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError) as e:
            raise NotFoundError(f"connect to Ray at `{address}`: {e}: start it with `ray start --head`") from e
    return ray, True


def check_version(version):
    """Refuses versions of Ray that nobody has tried."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    low, high = RAY_VERSIONS
    if not low <= numbers < high:
        raise UnsupportedError(
            f"run a job on Ray {version}: versions from {low[0]}.{low[1]} and below {high[0]}.{high[1]} are "
            "supported: pip install 'ray>=2.40,<3' on every node"
        )


def alive(ray):
    """Ids and processors of the nodes that are there, in the order of their ids."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted((node["NodeID"], int(node["Resources"].get("CPU", 0))) for node in nodes)


def answering(ray):
    """Ids of the nodes that are there and take connections. Ray counts on a node that is gone for some fifteen
    seconds more, and would wait for it where something is to be started there; a process that is gone refuses
    at once."""
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            try:
                socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), CONNECT_S).close()
            except OSError:
                continue
            found.append(node["NodeID"])
    # Where something between keeps us from all of them, Ray knows better.
    return found or [node for node, _ in alive(ray)]


def on_node(ray, node, soft=False):
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=soft)


def check_package(ray, nodes):
    """Refuses a cluster whose nodes lack this package, or have another version."""

    # Within another function, it is sent as it is and not by the name of a module that may be missing.
    def version():
        try:
            import holdfast
        except ImportError:
            return None
        return holdfast.__version__

    probe = ray.remote(version)
    asked = [probe.options(num_cpus=0, scheduling_strategy=on_node(ray, n)).remote() for n, _ in nodes]
    try:
        found = ray.get(asked)
    except ray.exceptions.RayError as e:
        raise RetryError(f"run a job: ask each node for its version of the package `holdfast`: one came or went: {e}") from e
    own = _holdfast.__version__
    for (node, _), version in zip(nodes, found):
        if version != own:
            there = f"has version {version}" if version else "does not have it"
            raise UnsupportedError(
                f"run a job with version {own} of the package `holdfast`: node {node[:8]} {there}: install the "
                "same wheel on every node, or send it: ray.init(runtime_env={'pip': ['holdfast-….whl']})"
            )


@contextlib.contextmanager
def connected(address, bar):
    """Ray and the nodes that are there, each of which has this package, for as long as a job takes."""
    bar.tell("start Ray" if address == "local" else "connect to Ray")
    ray, ours = connect(address)
    try:
        there = answering(ray)
        nodes = [(node, cpus) for node, cpus in alive(ray) if node in there]
        if not any(cpus for _, cpus in nodes):
            raise InvalidError("run a job on Ray: none of its nodes has a processor for tasks: start one with --num-cpus")
        check_package(ray, nodes)
        yield ray, nodes
    finally:
        if ours:
            ray.shutdown()


def sendable(ray, *works):
    """What tasks do, sent to Ray once for all of them."""
    sent = []
    for work in works:
        try:
            sent.append(ray.put(work))
        except (TypeError, ValueError, AttributeError, ImportError, RecursionError, pickle.PicklingError) as e:
            # Ray tells at length what it looked at, with the reason behind.
            why = e.__cause__ or type(e).__name__
            raise InvalidError(
                f"run a job: send its functions to the nodes: {why}: what they use must be sent with them: open files, "
                "locks and clients are made where they are used, within the function"
            ) from e
    return sent
