// How a list of tensors is cut for the norms. The order of every addition is fixed, whichever thread adds.
//
// Each tensor is cut into blocks of kBlock elements, the last one shorter. Blocks are numbered through the list; an
// empty tensor has none. A block's sum of squares: element e of a chunk of kChunk elements goes to lane e mod kLanes;
// each lane adds its squares (float64) from first to last; lanes are folded by halves (lane l gets lane l + kLanes / 2,
// and so on); the chunks' sums are added from first to last, as are a tensor's blocks.
#ifndef LARS_BLOCKS_H_
#define LARS_BLOCKS_H_

#include <cstdint>

namespace lars {

constexpr int64_t kBlock = 65536;
constexpr int64_t kChunk = 4096;
constexpr int kLanes = 32;

constexpr int64_t blocks_of(int64_t size) { return size / kBlock + (size % kBlock != 0); }

}  // namespace lars

#endif  // LARS_BLOCKS_H_
