// GPU kernels of the momentum ops; the arithmetic is in momentum_gpu.h. They are registered only if a compatible
// _cuda.so is found beside this library; otherwise TensorFlow runs these ops on the CPU and copies.
//
// This file compiles, and its parts are tested separately (tests/gpu); it has not yet run under TensorFlow on a GPU.
#include "../common/gpu_library_op.h"
#include "momentum_arguments.h"
#include "momentum_gpu.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_GPU;

// The functions of _cuda.so.
struct Cuda {
  decltype(&hvds_momentum_gpu_interface) interface = nullptr;
  decltype(&hvds_momentum_gpu_error) error = nullptr;
  decltype(&hvds_momentum_gpu_advance) advance = nullptr;
  decltype(&hvds_momentum_gpu_clear) clear = nullptr;

  bool find_all(void* library) {
    return find(library, "hvds_momentum_gpu_interface", &interface) &&
           find(library, "hvds_momentum_gpu_error", &error) &&
           find(library, "hvds_momentum_gpu_advance", &advance) && find(library, "hvds_momentum_gpu_clear", &clear) &&
           interface() == HVDS_MOMENTUM_GPU_INTERFACE;
  }
};

// Null if _cuda.so is not available.
const Cuda* cuda() {
  static Cuda functions;
  static const bool loaded = load_cuda("hvd_sparse keeps momentum on the CPU", &functions);
  return loaded ? &functions : nullptr;
}

absl::Status told(int code) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Momentum on the GPU: ", cuda()->error(code), "."));
}

class MomentumOp : public OpKernel {
 public:
  explicit MomentumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
  }

  void Compute(OpKernelContext* context) override {
    const MomentumArguments given(context);
    OP_REQUIRES_OK(context, given.check());
    const TensorShape shape = given.velocity.shape();
    const auto* velocity = static_cast<const float*>(given.velocity.data());
    Tensor* velocity_out = nullptr;
    Tensor* moves = nullptr;
    Tensor* culprit = nullptr;
    // In place if the velocity has no other holders, which is never the case for a variable's value.
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 0, shape, &velocity_out));
    if (nesterov_) OP_REQUIRES_OK(context, context->allocate_output(1, shape, &moves));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &culprit));
    OP_REQUIRES_OK(context, told(cuda()->advance(
                                given.parts.data(), dtype_of(given.parts.dtype()), given.count(), given.size(),
                                velocity, static_cast<const float*>(given.decay.data()),
                                static_cast<const float*>(given.gain.data()), static_cast<float*>(velocity_out->data()),
                                nesterov_ ? static_cast<float*>(moves->data()) : nullptr,
                                static_cast<int32_t*>(culprit->data()), handle_of(context))));
    if (!nesterov_) context->set_output(1, *velocity_out);
  }

 private:
  bool nesterov_ = false;
};

class ClearOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& vector = context->input(0);
    const Tensor& indices = context->input(1);
    OP_REQUIRES_OK(context, check_clearing(vector, indices));
    const auto* from = static_cast<const float*>(vector.data());
    const int64_t size = vector.NumElements();
    Tensor* cleared = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, TensorShape({size}), &cleared));
    OP_REQUIRES_OK(context, told(cuda()->clear(from, size, static_cast<const int32_t*>(indices.data()),
                                               indices.NumElements(), static_cast<float*>(cleared->data()),
                                               handle_of(context))));
  }
};

bool register_kernels() {
  if (cuda() == nullptr) return false;
  REGISTER_KERNEL_BUILDER(Name("HvdSparseMomentum").Device(DEVICE_GPU), MomentumOp);
  REGISTER_KERNEL_BUILDER(Name("HvdSparseClear").Device(DEVICE_GPU), ClearOp);
  return true;
}

const bool registered = register_kernels();

}  // namespace
}  // namespace hvds

// Whether the momentum ops have GPU kernels: 1 or 0.
extern "C" int hvds_momentum_gpu_registered(void) { return hvds::registered; }
