// GPU kernels of the LARS and LAMB ops; the arithmetic is in passes_gpu.h.
//
// As in select_gpu_op.cc, this library is compiled without CUDA, looks for _cuda.so in its own folder when it is
// loaded, and registers GPU kernels only if that is found and compatible.
//
// This file compiles, and the passes are tested separately (tests/gpu); it has not yet run under TensorFlow on a GPU.
#include <vector>

#include "../common/gpu_library_op.h"
#include "list_op.h"
#include "passes_gpu.h"

namespace lars {
namespace {

using hvds::find;
using hvds::handle_of;
using hvds::stream_of;
using tensorflow::DEVICE_GPU;

// ---- The functions of _cuda.so ----

struct Cuda {
  decltype(&lars_gpu_interface) interface = nullptr;
  decltype(&lars_gpu_error) error = nullptr;
  decltype(&::lars_gpu_partials) lars_partials = nullptr;
  decltype(&::lars_gpu_update) lars_update = nullptr;
  decltype(&::lamb_gpu_partials) lamb_partials = nullptr;
  decltype(&::lamb_gpu_update) lamb_update = nullptr;
  decltype(&lars_gpu_layer_sums) layer_sums = nullptr;

  bool find_all(void* library) {
    return find(library, "lars_gpu_interface", &interface) && find(library, "lars_gpu_error", &error) &&
           find(library, "lars_gpu_partials", &lars_partials) && find(library, "lars_gpu_update", &lars_update) &&
           find(library, "lamb_gpu_partials", &lamb_partials) && find(library, "lamb_gpu_update", &lamb_update) &&
           find(library, "lars_gpu_layer_sums", &layer_sums) && interface() == LARS_GPU_INTERFACE;
  }
};

// Null if _cuda.so is not available.
const Cuda* cuda() {
  static Cuda functions;
  static const bool loaded = hvds::load_cuda("lars computes on the CPU", &functions);
  return loaded ? &functions : nullptr;
}

// ---- Kernels ----

absl::Status told(int code) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("LARS and LAMB on the GPU: ", cuda()->error(code), "."));
}

// The device's stream orders what is queued, so locks need not be held until it has run.
class GpuListKernel : public ListKernel {
 public:
  using ListKernel::ListKernel;

 private:
  absl::Status copy_elements(OpKernelContext* context, const Tensor& from, Tensor* to) const override {
    const uint64_t bytes = from.TotalBytes();
    if (bytes == 0) return absl::OkStatus();
    stream_executor::DeviceAddressBase target(to->data(), bytes);
    return stream_of(context)->Memcpy(&target, stream_executor::DeviceAddressBase(from.data(), bytes), bytes);
  }
};

class LarsPartialsOp : public GpuListKernel {
 public:
  explicit LarsPartialsOp(OpKernelConstruction* context) : GpuListKernel(context, {"weights"}) {}

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kRead);
    std::vector<lars_layer> layers;
    OP_REQUIRES_OK(context, gather(context, &variables, &layers));
    int64_t first = 0, last = 0;
    double* partials = nullptr;
    OP_REQUIRES_OK(context, allocate_partials(context, layers, &first, &last, &partials));
    OP_REQUIRES_OK(context, told(cuda()->lars_partials(layers.data(), layers.size(), first, last, partials,
                                                       handle_of(context))));
  }
};

class LarsUpdateOp : public GpuListKernel {
 public:
  explicit LarsUpdateOp(OpKernelConstruction* context) : GpuListKernel(context, {"weights", "velocities"}) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
  }

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kUpdate);
    std::vector<lars_layer> layers;
    lars_rule rule{0, nesterov_};
    const double* ratios = nullptr;
    double learning_rate = 0;
    OP_REQUIRES_OK(context, read_scalar(context, "momentum", &rule.momentum));
    OP_REQUIRES_OK(context, read_scalar(context, "learning_rate", &learning_rate));
    OP_REQUIRES_OK(context, gather(context, &variables, &layers));
    OP_REQUIRES_OK(context, read_vector(context, "ratios", layers.size(), &ratios));
    OP_REQUIRES_OK(context, read_decays(context, &layers));
    OP_REQUIRES_OK(context, make_writable(context, variables, &layers));
    OP_REQUIRES_OK(context, told(cuda()->lars_update(layers.data(), layers.size(), &rule, learning_rate, ratios,
                                                     handle_of(context))));
  }

 private:
  bool nesterov_ = false;
};

class LambPartialsOp : public GpuListKernel {
 public:
  explicit LambPartialsOp(OpKernelConstruction* context)
      : GpuListKernel(context, {"weights", "first_moments", "second_moments"}) {}

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kRead);
    std::vector<lars_layer> layers;
    lamb_rule rule{};
    OP_REQUIRES_OK(context, read_rule(context, &rule));
    OP_REQUIRES_OK(context, gather(context, &variables, &layers));
    OP_REQUIRES_OK(context, read_decays(context, &layers));
    int64_t first = 0, last = 0;
    double* partials = nullptr;
    OP_REQUIRES_OK(context, allocate_partials(context, layers, &first, &last, &partials));
    OP_REQUIRES_OK(context, told(cuda()->lamb_partials(layers.data(), layers.size(), &rule, first, last, partials,
                                                       handle_of(context))));
  }
};

class LambUpdateOp : public GpuListKernel {
 public:
  explicit LambUpdateOp(OpKernelConstruction* context)
      : GpuListKernel(context, {"weights", "first_moments", "second_moments"}) {}

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kUpdate);
    std::vector<lars_layer> layers;
    lamb_rule rule{};
    const double* ratios = nullptr;
    double learning_rate = 0;
    OP_REQUIRES_OK(context, read_rule(context, &rule));
    OP_REQUIRES_OK(context, read_scalar(context, "learning_rate", &learning_rate));
    OP_REQUIRES_OK(context, gather(context, &variables, &layers));
    OP_REQUIRES_OK(context, read_vector(context, "ratios", layers.size(), &ratios));
    OP_REQUIRES_OK(context, read_decays(context, &layers));
    OP_REQUIRES_OK(context, make_writable(context, variables, &layers));
    OP_REQUIRES_OK(context, told(cuda()->lamb_update(layers.data(), layers.size(), &rule, learning_rate, ratios,
                                                     handle_of(context))));
  }
};

class LarsLayerSumsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &sizes = context->input(0), &partials = context->input(1);
    OP_REQUIRES_OK(context, check_rows(sizes, partials));
    const int64_t count = sizes.NumElements(), columns = partials.dim_size(1);
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count, columns}), &sums));
    OP_REQUIRES_OK(context, told(cuda()->layer_sums(sizes.vec<int64_t>().data(), count,
                                                    partials.matrix<double>().data(), partials.dim_size(0), columns,
                                                    sums->matrix<double>().data(), handle_of(context))));
  }
};

// Handles and scalars are in host memory; ratios are in device memory, where the norms are.
bool register_kernels() {
  if (cuda() == nullptr) return false;
  REGISTER_KERNEL_BUILDER(
      Name("LarsPartials").Device(DEVICE_GPU).HostMemory("weights").HostMemory("first").HostMemory("last"),
      LarsPartialsOp);
  REGISTER_KERNEL_BUILDER(Name("LarsUpdate")
                              .Device(DEVICE_GPU)
                              .HostMemory("weights")
                              .HostMemory("velocities")
                              .HostMemory("decays")
                              .HostMemory("learning_rate")
                              .HostMemory("momentum"),
                          LarsUpdateOp);
  REGISTER_KERNEL_BUILDER(Name("LambPartials")
                              .Device(DEVICE_GPU)
                              .HostMemory("weights")
                              .HostMemory("first_moments")
                              .HostMemory("second_moments")
                              .HostMemory("decays")
                              .HostMemory("beta_1")
                              .HostMemory("beta_2")
                              .HostMemory("epsilon")
                              .HostMemory("step")
                              .HostMemory("first")
                              .HostMemory("last"),
                          LambPartialsOp);
  REGISTER_KERNEL_BUILDER(Name("LambUpdate")
                              .Device(DEVICE_GPU)
                              .HostMemory("weights")
                              .HostMemory("first_moments")
                              .HostMemory("second_moments")
                              .HostMemory("decays")
                              .HostMemory("learning_rate")
                              .HostMemory("beta_1")
                              .HostMemory("beta_2")
                              .HostMemory("epsilon")
                              .HostMemory("step"),
                          LambUpdateOp);
  REGISTER_KERNEL_BUILDER(Name("LarsLayerSums").Device(DEVICE_GPU).HostMemory("sizes"), LarsLayerSumsOp);
  return true;
}

const bool registered = register_kernels();

}  // namespace
}  // namespace lars

// Whether the LARS and LAMB ops have GPU kernels: 1 or 0.
extern "C" int lars_gpu_registered(void) { return lars::registered; }
