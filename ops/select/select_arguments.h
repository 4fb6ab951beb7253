// Checks of the arguments of the selection ops, on the CPU and on a GPU.
#ifndef HVD_SPARSE_OPS_SELECT_ARGUMENTS_H_
#define HVD_SPARSE_OPS_SELECT_ARGUMENTS_H_

#include <limits>

#include "../common/op_support.h"

namespace hvds {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();  // indices are int32

inline absl::Status check_kept(int64_t kept, int64_t size) {
  if (kept >= 0 && kept <= size) return absl::OkStatus();
  return invalid_argument("Expected k in [0, ", size, "], the number of elements to select from, got ", kept, ".");
}

inline absl::Status check_size(int64_t size) {
  if (size <= kMaxSize) return absl::OkStatus();
  return invalid_argument("Expected at most ", kMaxSize, " elements to select from, as indices are int32, got ", size,
                          ".");
}

inline absl::Status check_number(const Tensor& number, const char* name) {
  if (tensorflow::TensorShapeUtils::IsScalar(number.shape())) return absl::OkStatus();
  return invalid_argument("Expected ", name, " as a scalar, got shape ", number.shape().DebugString(), ".");
}

inline absl::Status check_rows(const Tensor& x) {
  if (x.dims() >= 1) return absl::OkStatus();
  return invalid_argument("Expected x of shape [..., d], got a scalar.");
}

inline absl::Status check_parts(const Tensor& parts, const Tensor& residual) {
  if (parts.dims() != 2 || parts.dim_size(0) < 1) {
    return invalid_argument("Expected parts [n, d] with n of at least 1, got shape ", parts.shape().DebugString(), ".");
  }
  const int64_t size = parts.dim_size(1);
  if (residual.shape() == TensorShape({size})) return absl::OkStatus();
  return invalid_argument("Expected residual [", size, "], as parts are [", parts.dim_size(0), ", ", size,
                          "], got shape ", residual.shape().DebugString(), ".");
}

// The arguments of MSTopK; for the exact selection, samplings stays 0.
struct Search {
  int samplings = 0;
  uint64_t seed = 0;
};

// The elements of x that are not finite, over all rows.
struct NotFinite {
  int64_t count = 0;
  int64_t row = 0;
  int64_t index = 0;

  void add(int64_t at_row, const int64_t report[2]) {
    if (count == 0) {
      row = at_row;
      index = report[1];
    }
    count += report[0];
  }

  absl::Status status() const {
    if (count == 0) return absl::OkStatus();
    return invalid_argument("Expected finite elements in x, got ", count,
                            " that are NaN or infinite, the first at index ", index, " of row ", row, ".");
  }
};

// Reads the number of elements to keep and, for MSTopK, N of Algorithm 1 and the seed.
template <bool kMstopk>
class SelectionKernel : public OpKernel {
 public:
  explicit SelectionKernel(OpKernelConstruction* context) : OpKernel(context) {
    if constexpr (kMstopk) {
      OP_REQUIRES_OK(context, context->GetAttr("samplings", &samplings_));
      OP_REQUIRES(context, samplings_ >= 1,
                  invalid_argument("Expected samplings of at least 1, got ", samplings_, "."));
    }
  }

 protected:
  // Reads the inputs from `kept_input` on: how many of `size` elements to keep, and for MSTopK the seed.
  absl::Status read(OpKernelContext* context, int kept_input, int64_t size, int64_t* kept,
                    Search* search) const {
    TF_RETURN_IF_ERROR(check_size(size));
    TF_RETURN_IF_ERROR(check_number(context->input(kept_input), "k"));
    *kept = number_of(context->input(kept_input));
    TF_RETURN_IF_ERROR(check_kept(*kept, size));
    if constexpr (kMstopk) {
      TF_RETURN_IF_ERROR(check_number(context->input(kept_input + 1), "seed"));
      *search = Search{samplings_, static_cast<uint64_t>(number_of(context->input(kept_input + 1)))};
    }
    return absl::OkStatus();
  }

 private:
  int samplings_ = 0;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_ARGUMENTS_H_
