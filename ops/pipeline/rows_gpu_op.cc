// GPU kernels of the ops on rows; the arithmetic is in rows_gpu.h. They are registered only if a compatible _cuda.so is
// found beside this library; otherwise TensorFlow runs these ops on the CPU and copies.
//
// This file compiles, and its parts are tested separately (tests/gpu); it has not yet run under TensorFlow on a GPU.
#include "../common/gpu_library_op.h"
#include "rows_arguments.h"
#include "rows_gpu.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_GPU;

// The functions of _cuda.so.
struct Cuda {
  decltype(&hvds_rows_gpu_interface) interface = nullptr;
  decltype(&hvds_rows_gpu_error) error = nullptr;
  decltype(&hvds_rows_gpu_largest) largest = nullptr;
  decltype(&hvds_rows_gpu_place) place = nullptr;
  decltype(&hvds_rows_gpu_gather) gather = nullptr;
  decltype(&hvds_rows_gpu_mask) mask = nullptr;

  bool find_all(void* library) {
    return find(library, "hvds_rows_gpu_interface", &interface) && find(library, "hvds_rows_gpu_error", &error) &&
           find(library, "hvds_rows_gpu_largest", &largest) && find(library, "hvds_rows_gpu_place", &place) &&
           find(library, "hvds_rows_gpu_gather", &gather) && find(library, "hvds_rows_gpu_mask", &mask) &&
           interface() == HVDS_ROWS_GPU_INTERFACE;
  }
};

// Null if _cuda.so is not available.
const Cuda* cuda() {
  static Cuda functions;
  static const bool loaded = load_cuda("hvd_sparse selects the largest elements of rows on the CPU", &functions);
  return loaded ? &functions : nullptr;
}

absl::Status told(int code) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Rows on the GPU: ", cuda()->error(code), "."));
}

// Outputs y and positions, or values and positions.
template <bool kDense>
class LargestRowsOp : public OpKernel {
 public:
  explicit LargestRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &kept_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    hvds_rows shape{};
    Tensor* first = nullptr;
    Tensor* positions = nullptr;
    OP_REQUIRES_OK(context, rows_of(x, kept_, context->expected_output_dtype(1), &shape));
    OP_REQUIRES_OK(context, context->allocate_output(0, kDense ? x.shape() : with_width(x, kept_), &first));
    OP_REQUIRES_OK(context, context->allocate_output(1, with_width(x, kept_), &positions));
    OP_REQUIRES_OK(context, told(cuda()->largest(&shape, x.data(), kDense ? first->data() : nullptr,
                                                 kDense ? nullptr : first->data(), positions->data(),
                                                 handle_of(context))));
  }

 private:
  int64_t kept_ = 0;
};

class PlaceRowsOp : public OpKernel {
 public:
  explicit PlaceRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& positions = context->input(1);
    hvds_rows shape{};
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, check_values(values, positions));
    const int64_t kept = values.dim_size(values.dims() - 1);
    OP_REQUIRES_OK(context, check_row(kept, width_, positions.dtype()));
    OP_REQUIRES_OK(context, context->allocate_output(0, with_width(values, width_), &y));
    OP_REQUIRES_OK(context, rows_of(*y, kept, positions.dtype(), &shape));
    OP_REQUIRES_OK(context,
                   told(cuda()->place(&shape, values.data(), positions.data(), y->data(), handle_of(context))));
  }

 private:
  int64_t width_ = 0;
};

// Gathers the elements of x at the positions; with kDense they stay at their positions in a row of zeros.
template <bool kDense>
class GatherRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Tensor& positions = context->input(1);
    hvds_rows shape{};
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, check_positions(positions, x));
    OP_REQUIRES_OK(context, rows_of(x, positions.dim_size(positions.dims() - 1), positions.dtype(), &shape));
    OP_REQUIRES_OK(context, context->allocate_output(0, kDense ? x.shape() : positions.shape(), &output));
    const auto run = kDense ? cuda()->mask : cuda()->gather;
    OP_REQUIRES_OK(context, told(run(&shape, x.data(), positions.data(), output->data(), handle_of(context))));
  }
};

bool register_kernels() {
  if (cuda() == nullptr) return false;
  REGISTER_KERNEL_BUILDER(Name("HvdSparseThresholdRows").Device(DEVICE_GPU), LargestRowsOp<true>);
  REGISTER_KERNEL_BUILDER(Name("HvdSparseLargestRows").Device(DEVICE_GPU), LargestRowsOp<false>);
  REGISTER_KERNEL_BUILDER(Name("HvdSparsePlaceRows").Device(DEVICE_GPU), PlaceRowsOp);
  REGISTER_KERNEL_BUILDER(Name("HvdSparseGatherRows").Device(DEVICE_GPU), GatherRowsOp<false>);
  REGISTER_KERNEL_BUILDER(Name("HvdSparseMaskRows").Device(DEVICE_GPU), GatherRowsOp<true>);
  return true;
}

const bool registered = register_kernels();

}  // namespace
}  // namespace hvds

// Whether the ops on rows have GPU kernels: 1 or 0.
extern "C" int hvds_rows_gpu_registered(void) { return hvds::registered; }
