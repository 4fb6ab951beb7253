"""Merging sorted streams against SciPy's sparse addition, and QSGD against a plain pass over memory.

`make bench-merge` takes a few minutes on two cores and writes benchmarks/results/merge.md and .json. All results are
checked while they are timed: our sums equal SciPy's, decoded values lie within one step of the encoded ones, and their
mean error is that of unbiased rounding. Merges are timed through the kernels' C interface with reused buffers, and
include the check of the messages; SciPy's additions allocate their results. Quantization is given in multiples of one
read pass over the float32 vector; its targets are meant for vectors that lie in memory. A vector of 4M elements may fit
in a large cache, where a read pass is several times as fast.
"""

from __future__ import annotations

import argparse
import functools
import operator

import numpy as np
import scipy
import scipy.sparse

from benchmarks.passes.selection import Kernels, Rivals, aligned
from benchmarks.reporting import timing, writing
from benchmarks.reporting.timing import Arm
from benchmarks.sparcml.merging import Coder, Merger, message

SIZE = 16 * 2**20  # of the vectors that are merged, as in SparCML's Fig. 3
DENSITIES = (0.001, 0.00781, 0.05)
STREAMS = (2, 8)
SPEEDUPS = {2: 1.5, 8: 3.0}  # wanted speedups over SciPy
CODED = {"4M": 4 * 10**6, "25M": 25 * 10**6}
BITS = (2, 4, 8)
PASSES = {"quantize": 2.0, "dequantize": 2.5}  # maximum read passes for 4 bits, on AVX-512


class Merges:
    """Random streams of one density, which overlap by chance."""

    def __init__(self, rivals: Rivals, number: int, density: float):
        random = np.random.default_rng(number)
        parts = []
        for _ in range(number):
            indices = np.flatnonzero(random.random(SIZE) < density).astype(np.int32)
            # Small integers, so that the order of additions does not matter, and none of which cancel.
            parts.append((indices, random.integers(1, 9, indices.size).astype(np.float32)))
        self.rows = [
            scipy.sparse.csr_array((values, indices, np.array([0, indices.size], np.int32)), shape=(1, SIZE))
            for indices, values in parts
        ]
        for row in self.rows:
            assert row.has_canonical_format  # cached, so that SciPy need not check again
        self.merger = Merger([message(*part) for part in parts], SIZE, SIZE)
        self.two = rivals.threads(2)
        self.wanted = functools.reduce(operator.add, self.rows)
        self.sum = None

    def arms(self) -> dict[str, Arm]:
        return {
            "ours": Arm(self.merger.run, self._check),
            "ours, 2 threads": Arm(lambda: self.merger.run(self.two), self._check),
            "SciPy": Arm(self._add, self._check_rival),
        }

    def _add(self) -> None:
        self.sum = functools.reduce(operator.add, self.rows)

    def _check(self) -> None:
        count = self.wanted.nnz
        words = self.merger.words
        begin = 2 + count + count % 2
        assert words[:2].tolist() == [0, count] and self.merger.used == begin + count + count % 2
        np.testing.assert_array_equal(words[2 : 2 + count], self.wanted.indices)
        np.testing.assert_array_equal(words[begin : begin + count].view(np.float32), self.wanted.data)

    def _check_rival(self) -> None:
        assert self.sum.nnz == self.wanted.nnz


class Codings:
    """One vector, coded in several widths."""

    def __init__(self, rivals: Rivals, size: int):
        self.rivals = rivals
        self.x, self.out = aligned(size), aligned(size)
        self.x[:] = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
        self.coders = {bits: Coder(size, bits) for bits in BITS}
        self.two = rivals.threads(2)

    def arms(self) -> dict[str, Arm]:
        arms = {
            "read": Arm(lambda: self.rivals.read(self.x)),
            "read, A/A": Arm(lambda: self.rivals.read(self.x)),
            "write": Arm(lambda: self.out.fill(1)),
        }
        for bits, coder in self.coders.items():
            check = functools.partial(self._check, coder)
            arms[f"quantize, {bits} bits"] = Arm(functools.partial(coder.encode, self.x))
            arms[f"dequantize, {bits} bits"] = Arm(functools.partial(coder.decode, self.out), check)
            arms[f"quantize, {bits} bits, 2 threads"] = Arm(functools.partial(coder.encode, self.x, self.two))
            arms[f"dequantize, {bits} bits, 2 threads"] = Arm(
                functools.partial(coder.decode, self.out, self.two), check
            )
        return arms

    def _check(self, coder: Coder) -> None:
        """Checks that every value is within one step, with the mean error of unbiased rounding."""
        steps = np.repeat(coder.scales / coder.levels, coder.bucket)[: self.x.size]
        errors = self.out - self.x
        assert (np.abs(errors) <= 1.0001 * steps).all()
        assert abs(errors.sum(dtype=np.float64)) <= 5 * np.sqrt(0.25 * (steps.astype(np.float64) ** 2).sum())


def measure(quick: bool) -> tuple[list[dict], list[dict]]:
    """Times everything, with progress messages."""
    kernels, rivals = Kernels(), Rivals()
    print(f"Instruction set {kernels.isa()}; {timing.machine()['processor']}")
    cold = aligned(SIZE)
    rounds = 7 if quick else 15
    merges, codings = [], []
    for number in STREAMS:
        for density in DENSITIES:
            print(f"{number} streams of density {density} ...", flush=True)
            arms = Merges(rivals, number, density).arms()
            times = timing.interleave(arms, rounds, before=lambda: rivals.read(cold))
            merges.append({"streams": number, "density": density, "times": times})
    for name, size in CODED.items():
        if quick and size > 4 * 10**6:
            continue
        print(f"QSGD, d = {name} ...", flush=True)
        cell = Codings(rivals, size)
        times = timing.interleave(cell.arms(), rounds, before=lambda cell=cell: rivals.read(cell.x))
        codings.append({"size": name, "times": times})
    return merges, codings


def render(merges: list[dict], codings: list[dict], isa: str) -> str:
    """The tables as Markdown."""
    about = timing.machine()
    lines = [
        f"# Merging and quantizing, {about['date']}",
        "",
        f"`make bench-merge` on {about['processor']}, {isa}, one thread unless it says otherwise; NumPy "
        f"{about['numpy']}, SciPy {scipy.__version__}; commit {about['commit']}; {about['stolen']} of the cores' time "
        "stolen by the host. "
        "All arms in turn, results checked while timed.",
        "",
        "Sums of sorted float32 streams, N = 16M; medians (95th percentile) in milliseconds.",
        "",
        "| streams | density | ours | ours, 2 threads | SciPy | SciPy / ours | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in merges:
        times = cell["times"]
        ratio = times["SciPy"].median / times["ours"].median
        wanted = SPEEDUPS[cell["streams"]]
        entries = [f"{times[name].median:.2f} ({times[name].p95:.2f})" for name in ("ours", "ours, 2 threads", "SciPy")]
        lines.append(
            f"| {cell['streams']} | {cell['density']} | {' | '.join(entries)} | {ratio:.1f} | {wanted} | "
            f"{'met' if ratio >= wanted else 'missed'} |"
        )
    lines += [
        "",
        "QSGD, buckets of 1024, scale the largest magnitude; medians (95th percentile) in read passes.",
        "",
        "| | " + " | ".join(f"d = {cell['size']}" for cell in codings) + " | target |",
        "|---" * (len(codings) + 2) + "|",
        "| read pass, ms | " + " | ".join(f"{cell['times']['read'].median:.2f}" for cell in codings) + " | |",
    ]
    for name in list(codings[0]["times"])[1:]:
        entries = []
        for cell in codings:
            unit, taken = cell["times"]["read"].median, cell["times"][name]
            entries.append(f"{taken.median / unit:.2f} ({taken.p95 / unit:.2f})")
        kind, _, rest = name.partition(", ")
        wanted = f"<= {PASSES[kind]} in memory" if rest == "4 bits" else ""
        lines.append(f"| {name} | {' | '.join(entries)} | {wanted} |")
    if isa != "AVX-512":
        lines += ["", "The targets for QSGD are for AVX-512, which this processor lacks."]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds and no large vector; writes nothing")
    options = parser.parse_args()
    merges, codings = measure(options.quick)
    text = render(merges, codings, Kernels().isa())
    print(text)
    if options.quick:
        return
    plain = [
        {**cell, "times": {name: vars(taken) for name, taken in cell["times"].items()}} for cell in merges + codings
    ]
    stem = writing.write_results("merge", {"machine": timing.machine(), "cells": plain}, text)
    print(f"Written to {stem}.json and .md")


if __name__ == "__main__":
    main()
