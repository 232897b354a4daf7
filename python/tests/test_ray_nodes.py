"""Jobs over 1 and 4 nodes of Ray, whole nodes killed among them; each test has a cluster of its own."""

import contextlib
import os
import signal

import pytest

ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")

from holdfast import errors, ray_cluster  # noqa: E402
from test_ray import at_a_drawn_moment, gnu_sort, lines, sort, start, stop  # noqa: E402


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(lines(3, 80_000))
    return path


def test_one_node_sorts_as_four_do(text, tmp_path):
    cluster = start(1)
    try:
        stats = sort(text, tmp_path / "out")
        assert stats.nodes == 1 and (tmp_path / "out").read_bytes() == gnu_sort(text)
    finally:
        stop(cluster)


def test_four_nodes_of_which_two_are_killed(text, tmp_path):
    cluster = start(4)
    left = list(cluster.worker_nodes)

    def kill_a_node(draw, job):
        node = left.pop(draw.randrange(len(left)))
        cluster.remove_node(node, allow_graceful=False)
        # A machine takes its processes along; here they live on until they miss Ray, and a job this short
        # may be over by then.
        for slot in job.slots:
            if slot.node == node.node_id:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)
        # For Ray it is there for some fifteen seconds more. Splits were mapped there and a receiver was started
        # there, and the job waited: twice its own time.
        assert node.node_id in [id for id, _ in ray_cluster.alive(ray)]
        assert node.node_id not in ray_cluster.answering(ray)
        killed.append(node.node_id)

    killed = []
    try:
        undisturbed = sort(text, tmp_path / "undisturbed")
        assert undisturbed.nodes == 4 and undisturbed.lost_receivers == 0
        stats = sort(text, tmp_path / "out", observe=at_a_drawn_moment(0, kill_a_node))
        assert len(left) == 1 and stats.lost_receivers >= 1
        # What was done again was done by those that are left.
        again = [task for task in stats.timeline.mapped if task.begin > stats.timeline.lost[-1][0]]
        assert again and not {task.node for task in again} & set(killed)
        expected = gnu_sort(text)
        assert (tmp_path / "out").read_bytes() == expected
        assert (tmp_path / "undisturbed").read_bytes() == expected
        # The job before is over, and what is left of the cluster takes the next one.
        assert sort(text, tmp_path / "after").nodes == 2
    finally:
        stop(cluster)


def test_a_head_without_processors_maps_nothing(text, tmp_path):
    """Clusters keep their head free so: what is to be mapped there would wait for ever."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    try:
        with pytest.raises(errors.InvalidError, match="none of its nodes has a processor"):
            sort(text, tmp_path / "none")
    finally:
        stop(cluster)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    try:
        stats = sort(text, tmp_path / "out")
        assert stats.nodes == 2 and (tmp_path / "out").read_bytes() == gnu_sort(text)
        assert len({task.node for task in stats.timeline.mapped}) == 1
    finally:
        stop(cluster)
