// What is shared by ops that select from each piece of a vector separately, and do not know in advance how many
// elements.
#ifndef HVD_SPARSE_OPS_SELECT_PIECES_H_
#define HVD_SPARSE_OPS_SELECT_PIECES_H_

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "select.h"
#include "select_arguments.h"
#include "select_workspaces.h"

namespace hvds {

// Consecutive elements of a vector, about `kept` of which are sent.
struct Piece {
  int64_t begin;
  int64_t size;
  int64_t kept;
};

// The arguments of a kernel for one piece. It writes residual_out, `culprit` and `sent`, which are initially 0.
struct PieceCall {
  int64_t number;
  const Piece& piece;
  const void* parts;
  int dtype;
  int64_t count;
  int64_t stride;
  const float* residual;
  int wire;
  float* residual_out;
  int32_t* culprit;
  int64_t* sent;
  hvds_workspace* workspace;
  const hvds_parallel* parallel;
};

inline int64_t number_at(const Tensor& numbers, int64_t i) {
  return numbers.dtype() == tensorflow::DT_INT32 ? numbers.flat<int32_t>()(i) : numbers.flat<int64_t>()(i);
}

// The shapes of outputs 0 to 3: values, indices, residual_out [size] and culprit [].
template <typename InferenceContext>
absl::Status pieces_shape(InferenceContext* c) {
  auto parts = c->input(0), residual = c->input(1);
  auto size = c->UnknownDim();
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &parts));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &residual));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(parts, 1), c->Dim(residual, 0), &size));
  const auto sent = c->UnknownDim();
  c->set_output(0, c->Vector(sent));
  c->set_output(1, c->Vector(sent));
  c->set_output(2, c->Vector(size));
  c->set_output(3, c->Scalar());
  return absl::OkStatus();
}

// Inputs 0 and 1 are parts and residual. With `ends`, the ends of the vector's pieces, k [pieces] holds the k of each
// piece; without, there is one piece.
class PiecesKernel : public OpKernel {
 public:
  explicit PiecesKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &wire_));
    OP_REQUIRES_OK(context, context->GetAttr("ends", &ends_));
    for (size_t i = 0; i < std::max<size_t>(1, ends_.size()); ++i) workspaces_.emplace_back();
  }

 protected:
  absl::Status read_pieces(OpKernelContext* context, const Tensor& kept,
                           std::vector<Piece>* pieces) const {
    const Tensor& parts = context->input(0);
    TF_RETURN_IF_ERROR(check_parts(parts, context->input(1)));
    const int64_t size = parts.dim_size(1);
    TF_RETURN_IF_ERROR(check_size(size));
    if (ends_.empty()) {
      TF_RETURN_IF_ERROR(check_number(kept, "k"));
      pieces->push_back({0, size, number_of(kept)});
      return check_kept(number_of(kept), size);
    }
    const auto count = static_cast<int64_t>(ends_.size());
    if (kept.shape() != TensorShape({count}) || ends_.back() != size) {
      return invalid_argument("Expected k [", count, "] and pieces that end at ", size, ", got shape ",
                              kept.shape().DebugString(), " and an end at ", ends_.back(), ".");
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = i == 0 ? 0 : ends_[i - 1];
      if (ends_[i] <= begin) return invalid_argument("Expected ends that ascend, got ", ends_[i], " after ", begin, ".");
      pieces->push_back({begin, ends_[i] - begin, number_at(kept, i)});
      TF_RETURN_IF_ERROR(check_kept(pieces->back().kept, pieces->back().size));
    }
    return absl::OkStatus();
  }

  // Calls `select` with a PieceCall for each piece, and writes the outputs of `pieces_shape`.
  template <typename Select>
  void select_from(OpKernelContext* context, const std::vector<Piece>& pieces, Select&& select) {
    const Tensor& parts = context->input(0);
    const int64_t size = parts.dim_size(1);
    Tensor* residual_out = nullptr;
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, residuals_.allocate(context, 2, TensorShape({size}), &residual_out));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &culprit));
    const DeviceThreads threads(context);
    std::deque<Lease> leases;  // hold what each piece sends until the total is known
    std::vector<int64_t> sent(pieces.size());
    culprit->scalar<int32_t>()() = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t begin = pieces[i].begin;
      const char* first = static_cast<const char*>(parts.data()) + begin * DataTypeSize(parts.dtype());
      int32_t blamed = 0;
      leases.emplace_back(workspaces_[i]);
      const PieceCall call{static_cast<int64_t>(i), pieces[i], first, dtype_of(parts.dtype()), parts.dim_size(0), size,
                           static_cast<const float*>(context->input(1).data()) + begin, dtype_of(wire_),
                           static_cast<float*>(residual_out->data()) + begin, &blamed, &sent[i], leases.back().get(),
                           threads.get()};
      OP_REQUIRES_OK(context, told(select(call)));
      blame(blamed, &culprit->scalar<int32_t>()());
    }
    take(context, pieces, sent, leases);
  }

 private:
  // The lowest non-zero code of all pieces: a part takes precedence over the sum.
  static void blame(int32_t found, int32_t* culprit) {
    if (found != 0 && (*culprit == 0 || found < *culprit)) *culprit = found;
  }

  void take(OpKernelContext* context, const std::vector<Piece>& pieces, const std::vector<int64_t>& sent,
            const std::deque<Lease>& leases) {
    const int64_t total = std::accumulate(sent.begin(), sent.end(), int64_t{0});
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({total}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({total}), &indices));
    auto* to_values = static_cast<char*>(values->data());
    auto* to_indices = static_cast<int32_t*>(indices->data());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto begin = static_cast<int32_t>(pieces[i].begin);
      hvds_take_sent(leases[i].get(), dtype_of(wire_), to_values, to_indices);
      if (begin > 0) std::for_each_n(to_indices, sent[i], [begin](int32_t& index) { index += begin; });
      to_values += sent[i] * DataTypeSize(wire_);
      to_indices += sent[i];
    }
  }

  std::vector<int64_t> ends_;
  std::deque<Workspaces> workspaces_;  // one per piece, as large as it needs
  KeptOutputs residuals_;
  tensorflow::DataType wire_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_PIECES_H_
