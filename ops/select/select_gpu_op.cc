// GPU kernels of the selection ops; the arithmetic is in select_gpu.h.
//
// The same _ops.so serves machines with and without a GPU: it is compiled without CUDA and looks for _cuda.so, a plain
// C library, in its own folder when it is loaded. GPU kernels are registered only if that is found and compatible;
// otherwise TensorFlow runs these ops on the CPU and copies. _cuda.so includes the CUDA runtime and looks for the
// driver only when first called, so that loading it is harmless on a machine without a GPU.
//
// This file compiles, and its parts are tested separately (tests/gpu); it has not yet run under TensorFlow on a GPU.
#include <vector>

#include "../common/gpu_library_op.h"
#include "select_arguments.h"
#include "select_gpu.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_GPU;
using tensorflow::DT_INT64;
using tensorflow::DT_INT8;

// ---- The functions of _cuda.so ----

struct Cuda {
  decltype(&hvds_gpu_interface) interface = nullptr;
  decltype(&hvds_gpu_error) error = nullptr;
  decltype(&hvds_gpu_workspace) workspace = nullptr;
  decltype(&hvds_gpu_topk) topk = nullptr;
  decltype(&hvds_gpu_mstopk) mstopk = nullptr;
  decltype(&hvds_gpu_feedback_topk) feedback_topk = nullptr;
  decltype(&hvds_gpu_feedback_mstopk) feedback_mstopk = nullptr;

  bool find_all(void* library) {
    return find(library, "hvds_gpu_interface", &interface) && find(library, "hvds_gpu_error", &error) &&
           find(library, "hvds_gpu_workspace", &workspace) && find(library, "hvds_gpu_topk", &topk) &&
           find(library, "hvds_gpu_mstopk", &mstopk) && find(library, "hvds_gpu_feedback_topk", &feedback_topk) &&
           find(library, "hvds_gpu_feedback_mstopk", &feedback_mstopk) && interface() == HVDS_GPU_INTERFACE;
  }
};

// Null if _cuda.so is not available.
const Cuda* cuda() {
  static Cuda functions;
  static const bool loaded = load_cuda("hvd_sparse selects on the CPU", &functions);
  return loaded ? &functions : nullptr;
}

// ---- Kernels ----

absl::Status told(int code) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Selection on the GPU: ", cuda()->error(code), "."));
}

// Scratch memory of the device for successive calls on the op's stream. TensorFlow reuses it in the order of that
// stream, so it may be freed before they have run.
class Scratch {
 public:
  absl::Status allocate(OpKernelContext* context, int64_t size, int64_t kept, bool mstopk) {
    TF_RETURN_IF_ERROR(told(cuda()->workspace(size, kept, mstopk, &bytes_)));
    const int64_t room = static_cast<int64_t>(bytes_ + kAlignment - 1);
    return context->allocate_temp(DT_INT8, TensorShape({room}), &memory_);
  }

  void* start() const {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlignment = 256;

  Tensor memory_;
  size_t bytes_ = 0;
};

// Waits for the stream: the op fails if x is not finite, which only the device knows. The exchange of gradients uses
// FeedbackOp, which does not wait.
template <bool kMstopk>
class SelectOp : public SelectionKernel<kMstopk> {
 public:
  using SelectionKernel<kMstopk>::SelectionKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES_OK(context, check_rows(x));
    const int64_t size = x.dim_size(x.dims() - 1);
    int64_t kept = 0;
    Search search;
    OP_REQUIRES_OK(context, this->read(context, 1, size, &kept, &search));
    TensorShape shape = x.shape();
    shape.set_dim(x.dims() - 1, kept);
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &indices));
    const int64_t rows = size == 0 ? 0 : x.NumElements() / size;
    if (rows == 0) return;
    Tensor reports;
    OP_REQUIRES_OK(context, context->allocate_temp(DT_INT64, TensorShape({rows, 2}), &reports));
    OP_REQUIRES_OK(context, queue_rows(context, x, size, kept, search, values, indices, &reports));
    OP_REQUIRES_OK(context, wait_for(context, reports));
  }

 private:
  absl::Status queue_rows(OpKernelContext* context, const Tensor& x, int64_t size, int64_t kept, const Search& search,
                          Tensor* values, Tensor* indices, Tensor* reports) const {
    const int64_t item = tensorflow::DataTypeSize(x.dtype());
    const int dtype = dtype_of(x.dtype());
    void* stream = handle_of(context);
    Scratch scratch;
    TF_RETURN_IF_ERROR(scratch.allocate(context, size, kept, kMstopk));
    for (int64_t row = 0; row < reports->dim_size(0); ++row) {
      const void* from = static_cast<const char*>(x.data()) + row * size * item;
      void* to = static_cast<char*>(values->data()) + row * kept * item;
      auto* places = static_cast<int32_t*>(indices->data()) + row * kept;
      auto* report = static_cast<int64_t*>(reports->data()) + row * 2;
      TF_RETURN_IF_ERROR(told(
          kMstopk ? cuda()->mstopk(from, dtype, size, kept, search.samplings, search.seed, to, places, report,
                                   scratch.start(), scratch.bytes(), stream)
                  : cuda()->topk(from, dtype, size, kept, to, places, report, scratch.start(), scratch.bytes(), stream)));
    }
    return absl::OkStatus();
  }

  static absl::Status wait_for(OpKernelContext* context, const Tensor& reports) {
    std::vector<int64_t> found(reports.NumElements());
    const uint64_t bytes = reports.TotalBytes();
    stream_executor::Stream* stream = stream_of(context);
    TF_RETURN_IF_ERROR(stream->Memcpy(found.data(), stream_executor::DeviceAddressBase(reports.data(), bytes), bytes));
    TF_RETURN_IF_ERROR(stream->BlockHostUntilDone());
    NotFinite not_finite;
    for (int64_t row = 0; row < reports.dim_size(0); ++row) not_finite.add(row, &found[2 * row]);
    return not_finite.status();
  }
};

template <bool kMstopk>
class FeedbackOp : public SelectionKernel<kMstopk> {
 public:
  explicit FeedbackOp(OpKernelConstruction* context) : SelectionKernel<kMstopk>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &wire_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& parts = context->input(0);
    const Tensor& residual = context->input(1);
    OP_REQUIRES_OK(context, check_parts(parts, residual));
    const int64_t size = parts.dim_size(1);
    int64_t kept = 0;
    Search search;
    OP_REQUIRES_OK(context, this->read(context, 2, size, &kept, &search));
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    Tensor* residual_out = nullptr;
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({kept}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({kept}), &indices));
    // In place if the residual has no other holders, which is never the case for a variable's value.
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 2, TensorShape({size}), &residual_out));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &culprit));
    Scratch scratch;
    OP_REQUIRES_OK(context, scratch.allocate(context, size, kept, kMstopk));
    const int dtype = dtype_of(parts.dtype());
    const int wire = dtype_of(wire_);
    const int64_t count = parts.dim_size(0);
    const auto* residual_in = static_cast<const float*>(residual.data());
    auto* places = static_cast<int32_t*>(indices->data());
    auto* left = static_cast<float*>(residual_out->data());
    auto* code = static_cast<int32_t*>(culprit->data());
    void* stream = handle_of(context);
    OP_REQUIRES_OK(
        context,
        told(kMstopk ? cuda()->feedback_mstopk(parts.data(), dtype, count, size, residual_in, size, kept,
                                               search.samplings, search.seed, wire, values->data(), places, left, code,
                                               scratch.start(), scratch.bytes(), stream)
                     : cuda()->feedback_topk(parts.data(), dtype, count, size, residual_in, size, kept, wire,
                                             values->data(), places, left, code, scratch.start(), scratch.bytes(),
                                             stream)));
  }

 private:
  tensorflow::DataType wire_;
};

// The scalars are in host memory.
bool register_kernels() {
  if (cuda() == nullptr) return false;
  REGISTER_KERNEL_BUILDER(Name("HvdSparseTopk").Device(DEVICE_GPU).HostMemory("k"), SelectOp<false>);
  REGISTER_KERNEL_BUILDER(Name("HvdSparseMstopk").Device(DEVICE_GPU).HostMemory("k").HostMemory("seed"),
                          SelectOp<true>);
  REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackTopk").Device(DEVICE_GPU).HostMemory("k"), FeedbackOp<false>);
  REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackMstopk").Device(DEVICE_GPU).HostMemory("k").HostMemory("seed"),
                          FeedbackOp<true>);
  return true;
}

const bool registered = register_kernels();

}  // namespace
}  // namespace hvds

// Whether the selection ops have GPU kernels: 1 or 0.
extern "C" int hvds_gpu_registered(void) { return hvds::registered; }
