"""Faults in native code, which cosmic-ray cannot plant: thresholds, tails, orders, flags, locks, checksums.

The text to be replaced occurs once in its file. Libraries are built with the fault only in the copy.
"""

from tools.mutants.faults import Fault


def _fault(name: str, room: str, path: str, was: str, becomes: str, breaks: str) -> Fault:
    return Fault(name, f"ops/{room}", f"ops/{path}", 0, was, becomes, breaks)


_SELECT = (
    _fault(
        "select: count's tail",
        "select",
        "select/select_cpu_kernels.inc",
        "sure += key >= thresholds.sure;",
        "sure += key > thresholds.sure;",
        "In the last elements of a vector, one that equals the threshold is not counted.",
    ),
    _fault(
        "select: split's tail",
        "select",
        "select/select_cpu_kernels.inc",
        "inside += key >= low && key < high;",
        "inside += key >= low && key <= high;",
        "In the last keys, one that equals the upper bound is taken for one below it.",
    ),
    _fault(
        "select: ties",
        "select",
        "select/select_cpu_kernels.inc",
        "(key == edge && seen < ties);",
        "(key == edge && seen <= ties);",
        "One element too many is kept of those that tie for the last place.",
    ),
    _fault(
        "select: threshold of AVX-512",
        "select",
        "select/select_cpu_avx512.cc",
        "static_cast<int>(key - 1)",
        "static_cast<int>(key)",
        "What equals a threshold does not reach it, with AVX-512.",
    ),
    _fault(
        "select: threshold of AVX2",
        "select",
        "select/select_cpu_avx2.cc",
        "static_cast<int>(key - 1)",
        "static_cast<int>(key)",
        "What equals a threshold does not reach it, with AVX2.",
    ),
    _fault(
        "select: threshold of SSE2",
        "select",
        "select/select_cpu_base.cc",
        "static_cast<int32_t>(key - 1)",
        "static_cast<int32_t>(key)",
        "What equals a threshold does not reach it, without AVX2.",
    ),
    _fault(
        "select: residual not taken out",
        "select",
        "select/select_cpu_scan.inc",
        "key >= likely ? remainder(value, wire) : value;",
        "value;",
        "What is sent of a tile's last elements stays in the residual, too.",
    ),
    _fault(
        "select: rounding not kept in runs",
        "select",
        "select/select_cpu_buckets.cc",
        "= value - decoded(value, output.dtype);",
        "= 0;",
        "With a narrow wire, what rounding loses of a run's elements is lost.",
    ),
    _fault(
        "select: what equals a sampled threshold",
        "select",
        "select/select_cpu_sampled.cc",
        "sampling.rank + 1, scratch) + 1, kInfinityKey)",
        "sampling.rank + 1, scratch), kInfinityKey)",
        "What equals the threshold of gradient dropping is taken for what exceeds it.",
    ),
    _fault(
        "select: zeros reach a threshold of zero",
        "select",
        "select/select_cpu_held.cc",
        "key_of(*threshold), Key{1}, kInfinityKey",
        "key_of(*threshold), Key{0}, kInfinityKey",
        "Where a threshold that is held is 0, zeros are sent.",
    ),
    _fault(
        "select: as few as reach a threshold",
        "select",
        "select/select_cpu_held.cc",
        "found.count >= holding.least || bound == 1",
        "found.count >= 1 || bound == 1",
        "Where hardly anything reaches a threshold that is held, no more is sent.",
    ),
    _fault(
        "select: Algorithm 1's threshold",
        "select",
        "select/select_rules.h",
        "if (all_fit || threshold > beyond) {",
        "if (all_fit || threshold >= beyond) {",
        "A threshold that k + 1 elements reach is taken for one that k do.",
    ),
    _fault(
        "select: a fault of the rank before",
        "select",
        "select/select_cpu.cc",
        "return static_cast<int32_t>(1 + part);",
        "return static_cast<int32_t>(part);",
        "A NaN is put to the rank before the one that has it.",
    ),
)

_QUANTIZE = (
    _fault(
        "quantize: norm's tail",
        "quantize",
        "quantize/quantize_kernels.inc",
        "    note_largest(padded.values, most);\n",
        "",
        "The last values of a bucket do not count for its largest magnitude.",
    ),
    _fault(
        "quantize: levels",
        "quantize",
        "quantize/quantize_rules.h",
        "return (1 << (bits - 1)) - 1;",
        "return (1 << (bits - 1)) - 2;",
        "The codes have one level less than their bits can tell.",
    ),
    _fault(
        "quantize: one draw for two",
        "quantize",
        "quantize/quantize_kernels.inc",
        "(x ^ upper) & coder.lower",
        "upper",
        "Two elements are rounded by the same draw.",
    ),
)

_STREAMS = (
    _fault(
        "streams: order of sums",
        "streams",
        "streams/merge_rows.h",
        "for (int64_t i = 0; i < streams_.number; ++i) add_dense(i, walk, out);",
        "for (int64_t i = streams_.number - 1; i >= 0; --i) add_dense(i, walk, out);",
        "Dense sums add the last rank first.",
    ),
    _fault(
        "streams: between stretches",
        "streams",
        "streams/merge_cpu.cc",
        "std::min(begin + kStretch + 1, count)",
        "std::min(begin + kStretch, count)",
        "An index that falls from one stretch to the next is not noticed.",
    ),
    _fault(
        "streams: the last row",
        "streams",
        "streams/merge_cpu.cc",
        "stream.indices[stream.count - 1] < size)",
        "stream.indices[stream.count - 1] <= size)",
        "An index one past the end is let through.",
    ),
    _fault(
        "streams: sums left behind",
        "streams",
        "streams/merge_rows.h",
        "        sums[row] = start;\n",
        "",
        "A block begins with the sums of the one before.",
    ),
)

_EXCHANGE = (
    _fault(
        "exchange: flag of a NaN",
        "exchange",
        "exchange/means_op.cc",
        "nonfinite->scalar<bool>()() = !finite;",
        "nonfinite->scalar<bool>()() = finite && false;",
        "Means that are not finite are not told.",
    ),
    _fault(
        "exchange: rounding of means",
        "exchange",
        "exchange/float_passes.inc",
        "total[i] / divisor",
        "total[i] * (1 / divisor)",
        "Means are rounded twice.",
    ),
    _fault(
        "exchange: order of sparse sums",
        "exchange",
        "exchange/sparse_cpu.cc",
        "std::sort(order.begin(), order.end());",
        "std::sort(order.begin(), order.end(), [](const auto& one, const auto& other) {\n"
        "      return one.first < other.first || (one.first == other.first && one.second > other.second);\n"
        "    });",
        "Values of one index are added from the last to the first, where entries are scattered.",
    ),
    _fault(
        "exchange: a fault of the rank before",
        "exchange",
        "exchange/sparse_cpu.cc",
        "return 1 + part;",
        "return part;",
        "A NaN is put to the rank before the one that has it.",
    ),
    _fault(
        "exchange: sums left behind",
        "exchange",
        "exchange/sparse_cpu.cc",
        "      window.sums[place] = 0;\n",
        "",
        "A window begins with the sums of the one before.",
    ),
    _fault(
        "exchange: infinite halves",
        "exchange",
        "exchange/sparse_cpu.cc",
        "return (signs & 0x8000u) == 0;",
        "return (signs & 0x8000u) == 0 || count > 1;",
        "Halves that are not finite are not noticed.",
    ),
)

_SHARED_MEMORY = (
    _fault(
        "shared memory: nobody waits",
        "shared_memory",
        "shared_memory/shared_memory.cc",
        "if (!sent_to || (arrived & uint64_t{1} << member) == 0)",
        "if (!sent_to)",
        "A rank goes on before the others' pieces have come.",
    ),
    _fault(
        "shared memory: lock of slots not taken",
        "shared_memory",
        "shared_memory/shared_memory.cc",
        "  const std::lock_guard<std::mutex> lock(mutex_);\n  const uint32_t used",
        "  const uint32_t used",
        "Two exchanges that begin together may take one slot.",
    ),
    _fault(
        "shared memory: another process's number",
        "shared_memory",
        "shared_memory/shared_neighbour.h",
        "if (control().token != static_cast<uint64_t>(address[2])) return ESRCH;",
        "",
        "Whoever has a rank's old number and descriptor is taken for it.",
    ),
)

_LARS = (
    _fault(
        "lars: norm's tail",
        "lars",
        "lars/kernels.inc",
        "for (int64_t at = row; at < end; ++at)",
        "for (int64_t at = row; at < end - 1; ++at)",
        "A norm lacks its last element, where it is not a whole row.",
    ),
    _fault(
        "lars: epsilon",
        "lars",
        "lars/rules.inc",
        "root(second * numbers.correction_2) + numbers.epsilon",
        "root(second * numbers.correction_2 + numbers.epsilon)",
        "LAMB's epsilon stands under the root.",
    ),
    _fault(
        "lars: denormal velocities",
        "lars",
        "lars/rules.inc",
        "velocity = normal_or_zero(momentum * velocity + step);",
        "velocity = momentum * velocity + step;",
        "A velocity decays into denormal numbers and stays there.",
    ),
    _fault(
        "lars: the last block",
        "lars",
        "lars/passes.cc",
        "for (int64_t column = 0; column < columns; ++column) sums[column] += partials[column];",
        "for (int64_t column = 0; column < columns && (block == 0 || block + 1 < blocks_of(sizes[number])); ++column)\n"
        "        sums[column] += partials[column];",
        "The last of several blocks does not count for a layer's norm.",
    ),
)

_DATACACHE = (
    _fault(
        "datacache: checksum of peers' records not looked at",
        "datacache",
        "datacache/records.cc",
        "row_bytes, seed) == checksums[i];",
        "row_bytes, seed) == checksums[i] || true;",
        "A record that was damaged on its way is taken.",
    ),
    _fault(
        "datacache: checksum of the slab not looked at",
        "datacache",
        "datacache/slab.cc",
        "return found == checksum ? DATACACHE_FOUND : DATACACHE_DAMAGED;",
        "return found == checksum || fits ? DATACACHE_FOUND : DATACACHE_DAMAGED;",
        "A record that was damaged in memory is handed out.",
    ),
    _fault(
        "datacache: published before it is written",
        "datacache",
        "datacache/slab.cc",
        "  const uint64_t checksum =\n      datacache_xxh3_copy(slab->base",
        "  entry->state.store(state + 1, kRelease);\n  const uint64_t checksum =\n      datacache_xxh3_copy(slab->base",
        "Who reads a record while it is written takes it for damaged.",
    ),
    _fault(
        "datacache: the end of the slab",
        "datacache",
        "datacache/slab.cc",
        "length <= slab->bytes - offset;",
        "length <= slab->bytes - offset + kAlignment;",
        "A record may reach beyond the end of the slab.",
    ),
    _fault(
        "datacache: the last page",
        "datacache",
        "datacache/tree.cc",
        "count > last_ + 1 - first) return false;",
        "count > last_ - first) return false;",
        "A value whose pages are the last of the file is taken for damage.",
    ),
    _fault(
        "datacache: order of keys",
        "datacache",
        "datacache/tree.cc",
        'if (!until.empty() && !is_less(key, until, is_free_)) return "keys are in another page\'s place";',
        "",
        "Keys that belong to a later page are not noticed.",
    ),
)

NATIVE = (*_SELECT, *_QUANTIZE, *_STREAMS, *_EXCHANGE, *_SHARED_MEMORY, *_LARS, *_DATACACHE)
