"""Selection on a GPU against its rivals, in multiples of one pass that reads the vector.

Needs PyTorch and a CUDA GPU, and no TensorFlow: `python -m benchmarks.passes.bench_topk_gpu`. Device times are measured
by events; before each arm a buffer larger than the caches is written, which also lets the host queue ahead. In every
cell all arms run in turn and every result is checked. The unit is the median time to sum the vector (4 bytes per
element), measured in the same rounds; "read, A/A" is a second such arm, and shows the noise. The fused step is to be
compared with the plain addition of gradient and residual (12 bytes per element). The last arms use vectors for which
one pass is not enough, so that the whole vector is searched.
"""

from __future__ import annotations

import argparse
import ctypes
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.reporting import timing, writing
from benchmarks.reporting.timing import Arm, Timing
from tests.gpu import library, reference

try:
    import torch
except ImportError:
    torch = None
try:
    import cupy
except ImportError:
    cupy = None

SIZES = {"256K": 2**18, "1M": 10**6, "4M": 4 * 10**6, "25M": 25 * 10**6, "128M": 128 * 10**6}
DENSITIES = (0.001, 0.01, 0.1)
SAMPLINGS = 30
SEED = 1
FLOAT32 = 0


class Kernels:
    """ops/select/select_gpu.h on PyTorch's memory and stream, all of it float32."""

    def __init__(self, folder: pathlib.Path):
        self._native = library.on_gpu(folder).native
        self._report = torch.zeros(2, dtype=torch.int64, device="cuda")
        self._fault = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._workspace = torch.empty(0, dtype=torch.uint8, device="cuda")

    def prepare(self, size: int, k: int) -> None:
        """Takes a workspace that suffices for both methods."""
        needed = ctypes.c_size_t()
        for mstopk in (0, 1):
            self._require(self._native.hvds_gpu_workspace(*_int64s(size, k), mstopk, ctypes.byref(needed)))
            if needed.value > self._workspace.numel():
                self._workspace = torch.empty(needed.value, dtype=torch.uint8, device="cuda")

    def topk(self, x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> None:
        outputs = (*_pointers(values, indices, self._report), *self._place())
        self._require(self._native.hvds_gpu_topk(*_pointers(x), FLOAT32, *_int64s(x.numel(), values.numel()), *outputs))

    def mstopk(self, x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> None:
        outputs = (*_pointers(values, indices, self._report), *self._place())
        sizes = _int64s(x.numel(), values.numel())
        self._require(
            self._native.hvds_gpu_mstopk(*_pointers(x), FLOAT32, *sizes, SAMPLINGS, ctypes.c_uint64(SEED), *outputs)
        )

    def feedback_topk(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor,
        values: torch.Tensor,
        indices: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        self._feedback(self._native.hvds_gpu_feedback_topk, (), gradient, residual, values, indices, out)

    def feedback_mstopk(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor,
        values: torch.Tensor,
        indices: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        search = (SAMPLINGS, ctypes.c_uint64(SEED))
        self._feedback(self._native.hvds_gpu_feedback_mstopk, search, gradient, residual, values, indices, out)

    def _feedback(self, function, search, gradient, residual, values, indices, out) -> None:
        size = gradient.numel()
        parts = (*_pointers(gradient), FLOAT32, *_int64s(1, size), *_pointers(residual))
        outputs = (*_pointers(values, indices, out, self._fault), *self._place())
        self._require(function(*parts, *_int64s(size, values.numel()), *search, FLOAT32, *outputs))

    def _place(self) -> tuple:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        return (*_pointers(self._workspace), ctypes.c_size_t(self._workspace.numel()), stream)

    def _require(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self._native.hvds_gpu_error(code).decode())


def _pointers(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _int64s(*numbers: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(number) for number in numbers]


class Cell:
    """One size and density: the buffers and the arms."""

    def __init__(self, kernels: Kernels, size: int, density: float):
        self.kernels, self.size, self.k = kernels, size, max(1, round(size * density))
        generator = torch.Generator("cuda").manual_seed(0)
        self.x, self.gradient, self.residual = (
            torch.randn(size, generator=generator, device="cuda", dtype=torch.float32) for _ in range(3)
        )
        self.constant = torch.full_like(self.x, 0.1)
        self.zeros = torch.where(torch.rand(size, generator=generator, device="cuda") < density / 2, self.x, 0.0)
        self.out, self.in_place = torch.empty_like(self.x), torch.empty_like(self.x)
        self.values = torch.empty(self.k, device="cuda")
        self.indices = torch.empty(self.k, dtype=torch.int32, device="cuda")
        self.chosen = None
        self.exact = {name: _exact(vector, self.k) for name, vector in self._vectors().items()}
        self.total = self.residual + self.gradient
        self.exact_total = _exact(self.total, self.k)
        expected = reference.mstopk(self.x.cpu().numpy(), self.k, SAMPLINGS, SEED)
        self.approximate = torch.from_numpy(expected.astype(np.int32)).cuda()
        kernels.prepare(size, self.k)

    def _vectors(self) -> dict[str, torch.Tensor]:
        return {"x": self.x, "constant": self.constant, "zeros": self.zeros}

    def arms(self, slow_rounds: int) -> dict[str, Arm]:
        """The arms that are timed in this cell."""
        kernels, x, k = self.kernels, self.x, self.k
        outputs = (self.values, self.indices)
        fused = (self.gradient, self.residual, *outputs, self.out)
        arms = {
            "read": Arm(lambda: x.sum()),
            "read, A/A": Arm(lambda: x.sum()),
            "exact": Arm(lambda: kernels.topk(x, *outputs), self._check_exact("x")),
            "mstopk": Arm(lambda: kernels.mstopk(x, *outputs), self._check_approximate),
            "add": Arm(lambda: torch.add(self.gradient, self.residual, out=self.out)),
            "feedback exact": Arm(lambda: kernels.feedback_topk(*fused), self._check_fused_exact),
            "feedback mstopk": Arm(lambda: kernels.feedback_mstopk(*fused), self._check_fused),
            "feedback exact, in place": Arm(
                lambda: kernels.feedback_topk(self.gradient, self.in_place, *outputs, self.in_place), self._reset
            ),
            "Algorithm 1, literal": Arm(self._literal, self._check_literal, slow_rounds),
            "torch.topk": Arm(self._torch_topk, self._check_torch, slow_rounds),
        }
        if cupy is not None:
            vector = cupy.from_dlpack(x)
            arms["cupy.argpartition"] = Arm(
                lambda: cupy.argpartition(cupy.abs(vector), x.numel() - k)[x.numel() - k :], rounds=slow_rounds
            )
        for name, vector in (("constant", self.constant), ("zeros", self.zeros)):
            arms[f"exact, {name}"] = Arm(
                lambda vector=vector: kernels.topk(vector, *outputs), self._check_exact(name), slow_rounds
            )
        return arms

    def _check_exact(self, name: str) -> Callable[[], None]:
        def check() -> None:
            assert torch.equal(self.indices, self.exact[name])
            assert torch.equal(self.values, self._vectors()[name][self.indices.long()])

        return check

    def _check_approximate(self) -> None:
        assert torch.equal(self.indices, self.approximate)

    def _check_fused_exact(self) -> None:
        assert torch.equal(self.indices, self.exact_total)
        self._check_fused()

    def _check_fused(self) -> None:
        """sent + new residual == residual + gradient."""
        places = self.indices.long()
        assert torch.equal(self.values, self.total[places])
        assert not self.out[places].any()
        self.out[places] = self.values
        assert torch.equal(self.out, self.total)

    def _reset(self) -> None:
        """The in-place arm goes on from the start, so that numbers do not grow."""
        self.in_place.copy_(self.residual)

    def _literal(self) -> None:
        """Algorithm 1 as printed, with a pass over the vector and an answer to the host for every sampling."""
        a, k = self.x.abs(), self.k
        mean, highest = a.mean().item(), a.max().item()
        left, right, k1, k2, sure, band = 0.0, 1.0, 0, a.numel(), 0.0, 0.0
        for _ in range(SAMPLINGS):
            ratio = left + (right - left) / 2
            threshold = float(np.float32(mean + ratio * (highest - mean)))
            count = int((a >= threshold).sum())
            if count <= k:
                right = ratio
                k1, sure = max((k1, sure), (count, threshold), key=lambda pair: pair[0])
            else:
                left = ratio
                k2, band = min((k2, band), (count, threshold), key=lambda pair: pair[0])
        first = torch.nonzero(a >= sure).flatten()
        second = torch.nonzero((a < sure) & (a >= band)).flatten()
        self.chosen = torch.cat([first, second[: k - k1]])

    def _check_literal(self) -> None:
        assert self.chosen.numel() == self.k

    def _torch_topk(self) -> None:
        self.chosen = torch.topk(self.x.abs(), self.k).indices

    def _check_torch(self) -> None:
        least = self.x[self.exact["x"].long()].abs().min()
        assert self.x[self.chosen].abs().min() == least


def _exact(x: torch.Tensor, k: int) -> torch.Tensor:
    """Indices, ascending, of the k largest magnitudes; ties to the lowest index."""
    magnitude = x.abs()
    edge = torch.topk(magnitude, k).values[-1]
    above = torch.nonzero(magnitude > edge).flatten()
    ties = torch.nonzero(magnitude == edge).flatten()[: k - above.numel()]
    return torch.cat([above, ties]).sort().values.int()


def interleave(arms: Mapping[str, Arm], rounds: int, before: Callable[[], object]) -> dict[str, Timing]:
    """As `timing.interleave`, in milliseconds of the device."""
    milliseconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-1, rounds):
        for name, arm in arms.items():
            if number >= arm.rounds:
                continue
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before()
            start.record()
            arm.run()
            end.record()
            end.synchronize()
            if arm.check is not None:
                arm.check()
            if number >= 0:
                milliseconds[name].append(start.elapsed_time(end))
    return {
        name: Timing(float(np.median(taken)), float(np.percentile(taken, 95)), len(taken))
        for name, taken in milliseconds.items()
    }


def issue_microseconds(run: Callable[[], object], calls: int = 100) -> float:
    """What a call costs the host, which does not wait for the device."""
    taken = []
    for _ in range(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return 1e6 * float(np.median(taken))


def measure(kernels: Kernels, sizes: Mapping[str, int]) -> list[dict]:
    """Times every cell, with progress messages."""
    flushed = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    cells = []
    for name, size in sizes.items():
        for density in DENSITIES:
            print(f"d = {name}, k = {density} d ...", flush=True)
            cell = Cell(kernels, size, density)
            times = interleave(cell.arms(slow_rounds=5), rounds=21, before=flushed.zero_)
            issue = issue_microseconds(lambda cell=cell: kernels.topk(cell.x, cell.values, cell.indices))
            cells.append({"size": name, "density": density, "times": times, "issue": issue})
    return cells


def in_units(columns: Sequence[Mapping[str, Timing]]) -> list[str]:
    """Rows of a table, an arm each: medians (95th percentile) in multiples of the first arm's, which is left out."""
    unit, *names = columns[0]
    rows = []
    for name in names:
        of_unit = [(times[name].median / times[unit].median, times[name].p95 / times[unit].median) for times in columns]
        rows.append(f"| {name} | " + " | ".join(f"{median:.2f} ({p95:.2f})" for median, p95 in of_unit) + " |")
    return rows


def render(cells: list[dict]) -> str:
    """The table as Markdown."""
    about = timing.machine()
    heads = [f"{cell['size']}, {cell['density']}" for cell in cells]
    reads = [cell["times"]["read"].median for cell in cells]
    rates = [4e-6 * SIZES[cell["size"]] / read for cell, read in zip(cells, reads, strict=True)]
    lines = [
        f"# Selection on a GPU, {about['date']}",
        "",
        f"`python -m benchmarks.passes.bench_topk_gpu` on {torch.cuda.get_device_name()}; PyTorch {torch.__version__}, "
        f"CUDA {torch.version.cuda}{', CuPy ' + cupy.__version__ if cupy else ', no CuPy'}; commit {about['commit']}; "
        f"{about['stolen']} of the cores' time stolen by the host. "
        "Gaussian input, all arms in turn, results checked while timed.",
        "",
        "Medians (95th percentile) in multiples of one read pass.",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---" * (len(cells) + 1) + "|",
        "| read pass, ms | " + " | ".join(f"{read:.3f}" for read in reads) + " |",
        "| read pass, GB/s | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |",
        "| exact, us to issue | " + " | ".join(f"{cell['issue']:.0f}" for cell in cells) + " |",
    ]
    return "\n".join([*lines, *in_units([cell["times"] for cell in cells]), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="sizes up to 4M; writes nothing")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        sys.exit("Expected PyTorch with a CUDA GPU, found none: run this on a machine with one.")
    with tempfile.TemporaryDirectory() as folder:
        sizes = {name: size for name, size in SIZES.items() if not options.quick or size <= 4 * 10**6}
        cells = measure(Kernels(pathlib.Path(folder)), sizes)
    text = render(cells)
    print(text)
    if options.quick:
        return
    plain = [{**cell, "times": {name: vars(taken) for name, taken in cell["times"].items()}} for cell in cells]
    stem = writing.write_results("topk-gpu", {"machine": timing.machine(), "cells": plain}, text)
    print(f"Written to {stem}.json and .md")


if __name__ == "__main__":
    main()
