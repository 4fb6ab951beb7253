"""The GPU passes of momentum, LARS and LAMB, in multiples of adding two vectors.

Needs PyTorch and a CUDA GPU, and no TensorFlow: `python -m benchmarks.passes.bench_passes_gpu`. Device times are
measured by events. All arms run in turn, with a buffer larger than the caches written before each, and results are
checked while they are timed. The unit is torch.add of two vectors into a third (12 bytes per element); each name is
followed by the bytes per element that the arm must move. Rivals are PyTorch's own: norms of a list of tensors, and its
fused SGD and Adam, which move as much as an update of LARS and LAMB but have no trust ratio.
"""

from __future__ import annotations

import argparse
import ctypes
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.passes.bench_topk_gpu import FLOAT32, in_units, interleave
from benchmarks.reporting import timing, writing
from benchmarks.reporting.timing import Arm
from tests.gpu import lars_library, momentum_library
from tests.lars import native
from tests.lars.passes import BLOCK

try:
    import torch
except ImportError:
    torch = None

DECAY, GAIN, WEIGHT_DECAY, RATE, RATIO = 0.9, 0.7, 1e-4, 0.01, 0.5
BETA_1, BETA_2, EPSILON, STEP = 0.9, 0.999, 1e-6, 7
INT64, DOUBLE, POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class Shape(NamedTuple):
    """A model as a list of equal tensors."""

    tensors: int
    size: int

    @property
    def elements(self) -> int:
        return self.tensors * self.size


SHAPES = {"25.6M in 160": Shape(160, 160_000), "128M in 32": Shape(32, 4_000_000)}


class Momentum:
    """One vector of gradients and its velocity."""

    def __init__(self, library: ctypes.CDLL, elements: int):
        self._library = library
        self.gradient, self.velocity = torch.randn(elements, device="cuda"), torch.randn(elements, device="cuda")
        self.after, self.moves = torch.empty_like(self.velocity), torch.empty_like(self.velocity)
        self._numbers = [torch.tensor([number], device="cuda") for number in (DECAY, GAIN)]
        self._culprit = torch.tensor([-1], dtype=torch.int32, device="cuda")

    def advance(self, nesterov: bool) -> None:
        moves = self.moves.data_ptr() if nesterov else None
        decay, gain = (POINTER(number.data_ptr()) for number in self._numbers)
        code = self._library.hvds_momentum_gpu_advance(
            POINTER(self.gradient.data_ptr()), FLOAT32, INT64(1), INT64(self.gradient.numel()),
            POINTER(self.velocity.data_ptr()), decay, gain, POINTER(self.after.data_ptr()), POINTER(moves),
            POINTER(self._culprit.data_ptr()), _stream(),
        )  # fmt: skip
        assert code == 0, code

    def check(self) -> None:
        decay, gain = self._numbers
        assert torch.equal(self.after, decay * self.velocity + gain * self.gradient)
        assert self._culprit.item() == 0

    def check_nesterov(self) -> None:
        self.check()
        decay, gain = self._numbers
        assert torch.equal(self.moves, decay * self.after + gain * self.gradient)


class Layers:
    """A list of tensors with their gradients, slots and trust ratios."""

    def __init__(self, library: ctypes.CDLL, shape: Shape):
        self._library, self._shape = library, shape
        self.weights, self.gradients, self.first, self.second = (
            [torch.randn(shape.size, device="cuda") for _ in range(shape.tensors)] for _ in range(4)
        )
        for slot in self.second:
            slot.abs_()
        self._before = self._last()
        self._layers = (native.Layer * shape.tensors)()
        columns = (self.weights, self.gradients, self.first, self.second)
        for layer, tensors in zip(self._layers, zip(*columns, strict=True), strict=True):
            layer.weight, layer.gradient, layer.slots[0], layer.slots[1] = (each.data_ptr() for each in tensors)
            layer.size, layer.dtype, layer.decay = shape.size, FLOAT32, WEIGHT_DECAY
        self._blocks = shape.tensors * -(-shape.size // BLOCK)
        self._partials = torch.empty((self._blocks, 2), dtype=torch.float64, device="cuda")
        self._ratios = torch.full((shape.tensors,), RATIO, dtype=torch.float64, device="cuda")
        self._lars = native.Lars(DECAY, 0)
        self._lamb = native.Lamb(BETA_1, BETA_2, EPSILON, STEP)

    def lars_norms(self) -> None:
        self._norms(self._library.lars_gpu_partials)

    def lamb_norms(self) -> None:
        self._norms(self._library.lamb_gpu_partials, ctypes.byref(self._lamb))

    def lars_update(self) -> None:
        self._update(self._library.lars_gpu_update, self._lars)

    def lamb_update(self) -> None:
        self._update(self._library.lamb_gpu_update, self._lamb)

    def _norms(self, function: Callable[..., int], *rule: object) -> None:
        blocks = (INT64(0), INT64(self._blocks), POINTER(self._partials.data_ptr()))
        self._require(function(self._layers, INT64(self._shape.tensors), *rule, *blocks, _stream()))

    def _update(self, function: Callable[..., int], rule: ctypes.Structure) -> None:
        scales = (DOUBLE(RATE), POINTER(self._ratios.data_ptr()))
        layers = (self._layers, INT64(self._shape.tensors))
        self._require(function(*layers, ctypes.byref(rule), *scales, _stream()))

    def _require(self, code: int) -> None:
        assert code == 0, self._library.lars_gpu_error(code)

    def check_norms(self) -> None:
        sums = self._partials.reshape(self._shape.tensors, -1, 2).sum(1).sqrt()
        expected = torch.stack([weight.double().norm() for weight in self.weights])
        assert torch.allclose(sums[:, 0], expected, rtol=1e-9)

    def check_lars(self) -> None:
        weight, velocity, _ = self._before
        velocity = DECAY * velocity + RATE * RATIO * (self.gradients[-1] + WEIGHT_DECAY * weight)
        self._check_step(weight - velocity, velocity)

    def check_lamb(self) -> None:
        weight, first, second = self._before
        first = BETA_1 * first + (1 - BETA_1) * self.gradients[-1]
        second = BETA_2 * second + (1 - BETA_2) * self.gradients[-1] ** 2
        corrected = first / (1 - BETA_1**STEP) / ((second / (1 - BETA_2**STEP)).sqrt() + EPSILON)
        self._check_step(weight - RATE * RATIO * (corrected + WEIGHT_DECAY * weight), first)

    def _check_step(self, weight: torch.Tensor, slot: torch.Tensor) -> None:
        assert torch.allclose(self.weights[-1], weight, rtol=1e-5, atol=1e-6)
        assert torch.allclose(self.first[-1], slot, rtol=1e-5, atol=1e-6)
        self._before = self._last()

    def _last(self) -> list[torch.Tensor]:
        """Copies of the last tensor's weight and slots."""
        return [tensors[-1].clone() for tensors in (self.weights, self.first, self.second)]


def _stream() -> ctypes.c_void_p:
    return POINTER(torch.cuda.current_stream().cuda_stream)


def arms(libraries: tuple[ctypes.CDLL, ctypes.CDLL], shape: Shape) -> dict[str, Arm]:
    """The arms that are timed for one shape; the unit first."""
    momentum, layers = Momentum(libraries[0], shape.elements), Layers(libraries[1], shape)
    out = torch.empty_like(momentum.gradient)
    rivals = [[torch.nn.Parameter(each.clone()) for each in layers.weights] for _ in range(2)]
    for parameters in rivals:
        for parameter, gradient in zip(parameters, layers.gradients, strict=True):
            parameter.grad = gradient
    sgd = torch.optim.SGD(rivals[0], RATE * RATIO, DECAY, weight_decay=WEIGHT_DECAY, fused=True)
    adam = torch.optim.AdamW(rivals[1], RATE * RATIO, (BETA_1, BETA_2), fused=True)
    return {
        "add (12)": Arm(lambda: torch.add(momentum.gradient, momentum.velocity, out=out)),
        "add, A/A (12)": Arm(lambda: torch.add(momentum.gradient, momentum.velocity, out=out)),
        "momentum (12)": Arm(lambda: momentum.advance(False), momentum.check),
        "Nesterov's momentum (16)": Arm(lambda: momentum.advance(True), momentum.check_nesterov),
        "LARS: norms (8)": Arm(layers.lars_norms, layers.check_norms),
        "LARS: update (20)": Arm(layers.lars_update, layers.check_lars),
        "LAMB: norms (16)": Arm(layers.lamb_norms, layers.check_norms),
        "LAMB: update (28)": Arm(layers.lamb_update, layers.check_lamb),
        "PyTorch: norms of weights and gradients (8)": Arm(
            lambda: (torch._foreach_norm(layers.weights), torch._foreach_norm(layers.gradients))
        ),
        "PyTorch: fused SGD with momentum (20)": Arm(sgd.step),
        "PyTorch: fused AdamW (28)": Arm(adam.step),
    }


def render(tables: dict[str, dict[str, timing.Timing]]) -> str:
    """The table as Markdown."""
    about = timing.machine()
    units = [next(iter(times.values())).median for times in tables.values()]
    lines = [
        f"# Passes of momentum, LARS and LAMB on a GPU, {about['date']}",
        "",
        f"`python -m benchmarks.passes.bench_passes_gpu` on {torch.cuda.get_device_name()}; "
        f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}; commit {about['commit']}. "
        "All arms in turn, results checked while timed.",
        "",
        "Medians (95th percentile) in multiples of one addition; in brackets behind a name: bytes an element.",
        "",
        "| | " + " | ".join(tables) + " |",
        "|---" * (len(tables) + 1) + "|",
        "| addition, ms | " + " | ".join(f"{unit:.3f}" for unit in units) + " |",
    ]
    return "\n".join([*lines, *in_units(list(tables.values())), ""])


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if torch is None or not torch.cuda.is_available():
        sys.exit("Expected PyTorch with a CUDA GPU, found none: run this on a machine with one.")
    flushed = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    tables = {}
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder)
        libraries = (momentum_library.on_gpu(made).native, lars_library.on_gpu(made).native)
        for name, shape in SHAPES.items():
            print(f"{name} tensors ...", flush=True)
            tables[name] = interleave(arms(libraries, shape), rounds=21, before=flushed.zero_)
    text = render(tables)
    print(text)
    plain = {name: {arm: vars(taken) for arm, taken in times.items()} for name, times in tables.items()}
    stem = writing.write_results("passes-gpu", {"machine": timing.machine(), "tables": plain}, text)
    print(f"Written to {stem}.json and .md")


if __name__ == "__main__":
    main()
