"""A cell of the grid: one value of each axis, and a name that one command runs again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tests.grid.loops import LOOPS
from tests.grid.models import BATCH, MODELS
from tests.grid.optimizers import OPTIMIZERS
from tests.grid.recipes import GRADIENTS, LOCAL, RECIPES, SOME, UPDATES
from tests.grid.ways import WAYS

ALL = "all"
SHAPES = {"2x1": (2, 1), "2x2": (2, 2), "4x2": (4, 2), "1x1": (1, 1)}  # ranks by ranks of a node
PASSES = ("single", "horovods_two", "keras_two")
AXES: Mapping[str, Sequence[str]] = {
    "optimizer": tuple(OPTIMIZERS),
    "recipe": tuple(RECIPES),
    "way": tuple(WAYS),
    "model": tuple(MODELS),
    "when": ("after", "before", "middle"),
    "loop": tuple(LOOPS),
    "passes": PASSES,
    "shape": tuple(SHAPES),
    "density": (ALL, "some"),
    "data": ("own", "same"),
}
MOVED = {"2x1": "4x2", "2x2": "2x1", "4x2": "2x2", "1x1": "2x1"}  # the shape after a way that moves to other ranks
AHEAD = ("recommended", "diloco")  # nodes compute gradients at weights of their own
SGDS = ("SGD", "momentum", "Nesterov", "scaled_SGD")
# The only ones that do the same when their momentum, if any, is applied before the exchange: the others divide by the
# size of what the exchange returns, and scale before or after the momentum.
SAME_WITH_CORRECTION = (*SGDS, "Adagrad", "Adadelta")

__all__ = ["ALL", "AXES", "BATCH", "Cell"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is trained, how, and what happens on the way.

    Attributes:
        optimizer: a row of `OPTIMIZERS`.
        recipe: a row of `RECIPES`.
        way: a row of `WAYS`: what happens between the two phases of the training.
        model: a row of `MODELS`.
        when: "before" the first step, "after" some, or in the "middle" of an accumulation or between two exchanges.
        loop: a row of `LOOPS`: what runs the steps.
        passes: "single", or two backward passes for each step, summed by Horovod's rule or averaged by Keras's.
        shape: the ranks and nodes: 4x2 is four ranks in nodes of two.
        density: whether "all" is sent or only "some".
        data: whether each rank has its "own" batches, or all the "same".
    """

    optimizer: str
    recipe: str
    way: str
    model: str
    when: str
    loop: str
    passes: str
    shape: str
    density: str
    data: str

    @classmethod
    def named(cls, name: str) -> Cell:
        """The cell of a name."""
        values = name.split("-")
        return cls(**dict(zip(AXES, values, strict=True)))

    @property
    def name(self) -> str:
        """All values, in the order of the axes."""
        return "-".join(getattr(self, axis) for axis in AXES)

    @property
    def after(self) -> Cell:
        """The cell on the ranks that it ends on."""
        moves = WAYS[self.way].moves
        return dataclasses.replace(self, shape=MOVED[self.shape]) if moves else self

    @property
    def ranks(self) -> int:
        return SHAPES[self.shape][0]

    @property
    def local_size(self) -> int:
        return SHAPES[self.shape][1]

    @property
    def nodes(self) -> int:
        """The number of nodes, or of ranks if the recipe makes each a node, which it does unless all are on one."""
        nodes = self.ranks // self.local_size
        return self.ranks if RECIPES[self.recipe].flat and nodes > 1 else nodes

    @property
    def share(self) -> float:
        """The density as a number."""
        return 1.0 if self.density == ALL else SOME

    @property
    def sends_all(self) -> bool:
        return self.density == ALL or not RECIPES[self.recipe].lossy

    @property
    def counts(self) -> tuple[int, int]:
        """The number of batches before and after what happens on the way."""
        if self.when == "before":
            return 0, 4
        return (3, 3) if self.when == "middle" else (2, 2)

    @property
    def alike(self) -> bool:
        """Whether all ranks compute the same gradients."""
        return self.ranks == 1 or (self.data == "same" and not MODELS[self.model].own)

    def differs(self, path: str) -> bool:
        """Whether a variable of this path is each rank's own."""
        kind = MODELS[self.model]
        ahead = self.recipe in AHEAD
        own = (*kind.own, *(kind.statistics if self.data == "own" else ()), *(kind.of_weights if ahead else ()))
        return self.ranks > 1 and path.startswith(tuple(own)) and bool(own)

    @property
    def has_own(self) -> bool:
        """Whether the ranks have variables that differ."""
        kind = MODELS[self.model]
        return self.ranks > 1 and bool(kind.own or (kind.statistics and self.data == "own"))

    @property
    def is_simulated(self) -> bool:
        """Whether plain Keras optimizers can do the same, as nothing waits to be sent and no state is averaged."""
        recipe, one_node = RECIPES[self.recipe], self.nodes == 1
        if not self.sends_all or (WAYS[self.way].changes and recipe.applies != GRADIENTS):
            return False
        if self.loses_unsaved:
            return False
        if recipe.applies == LOCAL and WAYS[self.way].drops:
            return False  # the velocity of the outer step
        if recipe.corrects and self.optimizer not in SAME_WITH_CORRECTION:
            return False
        if self.recipe == "recommended" and not (self.optimizer in SGDS or self.alike or one_node):
            return False  # the gain ratio
        if recipe.applies != GRADIENTS and WAYS[self.way].averages_slots and not (self.alike or one_node):
            return False
        if WAYS[self.way].broadcasts and self.broadcast_changes:
            return False
        if WAYS[self.way].moves and (self.node_updates or self.after.has_own):
            return False  # another number of nodes, or ranks without a state of their own
        return not (WAYS[self.way].loses_own and (self.has_own or (self.has_sums and not self.alike)))

    @property
    def loses_unsaved(self) -> bool:
        """Whether Keras leaves out a part of the model's state."""
        return MODELS[self.model].unsaved and WAYS[self.way].by_keras

    @property
    def has_sums(self) -> bool:
        """Whether it stops between the passes of a step."""
        return self.when == "middle" and self.passes != "single"

    @property
    def broadcast_changes(self) -> bool:
        """Whether ranks have statistics or sums that a broadcast gives all of them rank 0's of."""
        statistics = bool(MODELS[self.model].statistics) and self.data == "own"
        return self.ranks > 1 and (statistics or (self.has_sums and not self.alike))

    @property
    def is_exact(self) -> bool:
        """Whether it ends with the bits of a training that was not stopped."""
        way, recipe = WAYS[self.way], RECIPES[self.recipe]
        if self.loses_unsaved:
            return False
        if way.exact:
            return not (way.broadcasts and self.broadcast_changes)
        if not way.keeps_slots or way.changes or way.moves or (self.has_own and way.loses_own):
            return False
        plain = recipe.applies == GRADIENTS and not recipe.corrects
        return plain and self.sends_all and not (self.when == "middle" and way.loses_own)

    @property
    def node_updates(self) -> bool:
        """Whether each node makes its own update."""
        return RECIPES[self.recipe].applies != GRADIENTS

    @property
    def is_updates(self) -> bool:
        return RECIPES[self.recipe].applies == UPDATES
