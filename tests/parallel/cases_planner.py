"""What is measured is the same on all ranks, and so are the choices."""

import math

import hvd_sparse as hvd
from hvd_sparse import planner
from tests.parallel.cases import case


@case(ranks=(2, 4), over=lambda ranks: [{"local_size": n} for n in (1, 2, 4) if n <= ranks])
def ranks_measure_alike_and_choose_alike(local_size):
    hvd.init(local_size=local_size)
    cluster = planner.measure()
    assert (cluster.nodes, cluster.local) == (hvd.size() // local_size, local_size)
    for link in (cluster.inside, cluster.across):
        assert link.latency >= 0 and 0 < link.bandwidth < math.inf
    own = [list(cluster.inside), list(cluster.across), cluster.memory, planner.plan(cluster, 10**6, 0.01).recipe]
    everyones = hvd.topology.world().gather_descriptions(str(own), "planner.everyones")
    assert everyones == [everyones[0]] * hvd.size()
