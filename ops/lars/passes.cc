// The interface of passes.h: checks, how the list is cut, and how the work is divided.
#include "passes.h"

#include <algorithm>
#include <new>
#include <vector>

#include "../common/cpu_features.h"
#include "../common/float_mode.h"
#include "list.h"

namespace lars {
namespace {

constexpr int64_t kWorthATask = 131072;  // elements for which waking a thread pays off
constexpr int64_t kItemSizes[kDtypes] = {4, 2, 2, 8};

const Kernels& kernels() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() == HVDS_AVX512) return kAvx512Kernels;
  if (hvds_isa() == HVDS_AVX2) return kAvx2Kernels;
#endif
  return kBaseKernels;
}

// ---- How the list is cut ----

// A block, shorter at the end of a layer.
struct Piece {
  int64_t layer, begin, count;
};

std::vector<Piece> cut(const lars_layer* layers, int64_t count, int64_t first, int64_t last) {
  std::vector<Piece> pieces;
  pieces.reserve(last - first);
  int64_t before = 0;  // blocks of the preceding layers
  for (int64_t number = 0; number < count && before < last; ++number) {
    const int64_t size = layers[number].size;
    const int64_t blocks = blocks_of(size);
    for (int64_t block = std::max<int64_t>(first - before, 0); block < std::min(last - before, blocks); ++block) {
      pieces.push_back({number, block * kBlock, std::min(kBlock, size - block * kBlock)});
    }
    before += blocks;
  }
  return pieces;
}

// Calls body(place, piece) for each piece; tasks get the same number of elements, to within a block.
template <typename Body>
void for_pieces(const std::vector<Piece>& pieces, const hvds_parallel* parallel, const Body& body) {
  int64_t elements = 0;
  for (const Piece& piece : pieces) elements += piece.count;
  const int64_t tasks = std::clamp<int64_t>(elements / kWorthATask, 1, hvds::thread_count(parallel));
  const int64_t share = elements / tasks + 1;
  hvds::parallel_for(parallel, static_cast<int>(tasks), [&](int task) {
    const hvds::StandardFloats standard;
    int64_t before = 0;
    for (size_t place = 0; place < pieces.size(); ++place) {
      if (before / share == task) body(place, pieces[place]);
      before += pieces[place].count;
    }
  });
}

Span span_of(const lars_layer& layer, const Piece& piece) {
  const int64_t skipped = piece.begin * kItemSizes[layer.dtype];
  const auto at = [skipped](void* start) {
    return start == nullptr ? nullptr : static_cast<void*>(static_cast<char*>(start) + skipped);
  };
  return {at(layer.weight),
          {at(layer.slots[0]), at(layer.slots[1])},
          static_cast<const char*>(layer.gradient) + skipped,
          piece.count,
          layer.scale,
          layer.decay};
}

// Calls body(place, layer, span) for the blocks first <= b < last.
template <typename Body>
int for_blocks(const lars_layer* layers, int64_t count, int64_t first, int64_t last, const hvds_parallel* parallel,
               const Body& body) try {
  for_pieces(cut(layers, count, first, last), parallel, [&](size_t place, const Piece& piece) {
    const lars_layer& layer = layers[piece.layer];
    body(place, layer, span_of(layer, piece));
  });
  return LARS_OK;
} catch (const std::bad_alloc&) {
  return LARS_OUT_OF_MEMORY;
}

template <typename Body>
int for_all_blocks(const lars_layer* layers, int64_t count, const hvds_parallel* parallel, const Body& body) {
  const int64_t blocks = count_blocks(layers, count);
  if (blocks < 0) return LARS_BAD_ARGUMENT;
  return for_blocks(layers, count, 0, blocks, parallel,
                    [&](size_t, const lars_layer& layer, const Span& span) { body(layer, span); });
}

}  // namespace
}  // namespace lars

extern "C" int64_t lars_block_size(void) { return lars::kBlock; }

extern "C" int64_t lars_block_count(const lars_layer* layers, int64_t count) {
  if (count < 0 || (count > 0 && layers == nullptr)) return LARS_BAD_ARGUMENT;
  return lars::count_blocks(layers, count);
}

extern "C" int lars_partials(const lars_layer* layers, int64_t count, int64_t first, int64_t last, double* partials,
                             const hvds_parallel* parallel) {
  using namespace lars;
  if (!valid(layers, count, 0) || !valid_range(layers, count, first, last, partials)) return LARS_BAD_ARGUMENT;
  const Kernels& table = kernels();
  return for_blocks(layers, count, first, last, parallel, [&](size_t place, const lars_layer& layer, const Span& span) {
    partials[2 * place] = table.sum_of_squares[layer.dtype](span.weight, span.count);
    partials[2 * place + 1] = table.sum_of_squares[layer.dtype](span.gradient, span.count);
  });
}

extern "C" int lars_update(const lars_layer* layers, int64_t count, const lars_rule* rule,
                           const hvds_parallel* parallel) {
  using namespace lars;
  if (!valid(layers, count, 1) || rule == nullptr) return LARS_BAD_ARGUMENT;
  const auto& update = rule->nesterov != 0 ? kernels().nesterov_update : kernels().lars_update;
  return for_all_blocks(layers, count, parallel, [&](const lars_layer& layer, const Span& span) {
    update[layer.dtype](span, rule->momentum);
  });
}

extern "C" int lamb_partials(const lars_layer* layers, int64_t count, const lamb_rule* rule, int64_t first,
                             int64_t last, double* partials, const hvds_parallel* parallel) {
  using namespace lars;
  if (!valid(layers, count, 2) || !valid(rule) || !valid_range(layers, count, first, last, partials)) {
    return LARS_BAD_ARGUMENT;
  }
  const Kernels& table = kernels();
  const LambRule numbers = derived(*rule);
  return for_blocks(layers, count, first, last, parallel, [&](size_t place, const lars_layer& layer, const Span& span) {
    table.lamb_squares[layer.dtype](span, numbers, partials + 2 * place);
  });
}

extern "C" int lamb_update(const lars_layer* layers, int64_t count, const lamb_rule* rule,
                           const hvds_parallel* parallel) {
  using namespace lars;
  if (!valid(layers, count, 2) || !valid(rule)) return LARS_BAD_ARGUMENT;
  const Kernels& table = kernels();
  const LambRule numbers = derived(*rule);
  return for_all_blocks(layers, count, parallel, [&](const lars_layer& layer, const Span& span) {
    table.lamb_update[layer.dtype](span, numbers);
  });
}

extern "C" int lars_layer_sums(const int64_t* sizes, int64_t count, const double* partials, int64_t rows,
                               int64_t columns, double* sums) {
  using namespace lars;
  const int64_t blocks = count_blocks(count, [sizes](int64_t number) { return sizes[number]; });
  if (blocks != rows || columns < 0) return LARS_BAD_ARGUMENT;
  const hvds::StandardFloats standard;
  for (int64_t number = 0; number < count; ++number, sums += columns) {
    std::fill(sums, sums + columns, 0.0);
    for (int64_t block = 0; block < blocks_of(sizes[number]); ++block, partials += columns) {
      for (int64_t column = 0; column < columns; ++column) sums[column] += partials[column];
    }
  }
  return LARS_OK;
}
