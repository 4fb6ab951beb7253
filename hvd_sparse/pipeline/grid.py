"""Which rank computes which stage of which copy of a model."""

from __future__ import annotations

from hvd_sparse.transport import topology
from hvd_sparse.transport.process_sets import ProcessSet, global_process_set


class Grid:
    """Trainers, each a whole model on as many ranks as it has stages (DCT 3.3, hybrid parallelism).

    The ranks of a trainer are consecutive: rank = trainer * stages + stage. The ranks of one stage exchange gradients:

        grid = hvd.pipeline.Grid(trainers=2, stages=2)
        hvd.init(process_sets=grid.process_sets)
        optimizer = hvd.DistributedOptimizer(optimizer, aggregator=recipe, process_set=grid.process_set)

    Attributes:
        trainers: number of copies of the model.
        stages: number of stages of the model.
        process_sets: for `hvd.init`, the ranks of each stage; empty if there is one stage.

    Raises:
        ValueError: if there is no trainer or no stage.
    """

    def __init__(self, trainers: int = 1, stages: int = 1):
        if trainers < 1 or stages < 1:
            raise ValueError(f"Expected trainers and stages of at least 1, got {trainers} and {stages}.")
        self.trainers, self.stages = trainers, stages
        several = range(stages) if stages > 1 else ()
        self.process_sets = [ProcessSet(self.ranks_of_stage(stage)) for stage in several]

    def __repr__(self) -> str:
        return f"Grid(trainers={self.trainers}, stages={self.stages})"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.trainers * self.stages

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that have this rank's stage."""
        return self.process_sets[self.stage_of(topology.rank())] if self.process_sets else global_process_set

    def stage_of(self, rank: int) -> int:
        """The stage that a rank computes."""
        return rank % self.stages

    def trainer_of(self, rank: int) -> int:
        """The trainer that a rank belongs to."""
        return rank // self.stages

    def ranks_of_stage(self, stage: int) -> list[int]:
        """The ranks that compute a stage, one of each trainer."""
        return [trainer * self.stages + stage for trainer in range(self.trainers)]

    def ranks_of_trainer(self, trainer: int) -> list[int]:
        """The ranks of a trainer, in the order of their stages."""
        return list(range(trainer * self.stages, (trainer + 1) * self.stages))
