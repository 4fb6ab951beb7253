// The TensorFlow ops of LARS and LAMB and their CPU kernels; the arithmetic is in passes.h.
#include <vector>

#include "list_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace lars {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// ---- Shapes ----

absl::Status check_scalars(InferenceContext* c, const std::vector<const char*>& names) {
  for (const char* name : names) {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c->input(name, &shapes));
    ShapeHandle ignored;
    TF_RETURN_IF_ERROR(c->WithRank(shapes[0], 0, &ignored));
  }
  return absl::OkStatus();
}

absl::Status check_vectors(InferenceContext* c, const std::vector<const char*>& names) {
  int64_t count = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &count));
  for (const char* name : names) {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c->input(name, &shapes));
    ShapeHandle vector;
    DimensionHandle length;
    TF_RETURN_IF_ERROR(c->WithRank(shapes[0], 1, &vector));
    TF_RETURN_IF_ERROR(c->WithValue(c->Dim(vector, 0), count, &length));
  }
  return absl::OkStatus();
}

absl::Status set_partials(InferenceContext* c) {
  const int inputs = c->num_inputs();  // `first` and `last` are the last two
  const Tensor *first = c->input_tensor(inputs - 2), *last = c->input_tensor(inputs - 1);
  int64_t rows = InferenceContext::kUnknownDim;
  if (first != nullptr && last != nullptr) {
    const int64_t begin = first->scalar<int64_t>()(), end = last->scalar<int64_t>()();
    if (begin < 0 || begin > end) {
      return invalid_argument("Expected 0 <= first <= last, got first ", begin, " and last ", end);
    }
    rows = end - begin;
  }
  c->set_output(0, c->Matrix(rows, 2));
  return absl::OkStatus();
}

absl::Status lars_partials_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(check_scalars(c, {"first", "last"}));
  return set_partials(c);
}

absl::Status lamb_partials_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(check_vectors(c, {"decays"}));
  TF_RETURN_IF_ERROR(check_scalars(c, {"beta_1", "beta_2", "epsilon", "step", "first", "last"}));
  return set_partials(c);
}

absl::Status lars_update_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(check_vectors(c, {"ratios", "decays"}));
  return check_scalars(c, {"learning_rate", "momentum"});
}

absl::Status lamb_update_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(check_vectors(c, {"ratios", "decays"}));
  return check_scalars(c, {"learning_rate", "beta_1", "beta_2", "epsilon", "step"});
}

absl::Status layer_sums_shape(InferenceContext* c) {
  ShapeHandle sizes, partials;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &sizes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &partials));
  c->set_output(0, c->Matrix(c->Dim(sizes, 0), c->Dim(partials, 1)));
  return absl::OkStatus();
}

// ---- Registration ----
//
// Stateful, as they read or write variables: graph optimization leaves them in place.

REGISTER_OP("LarsPartials")
    .Input("weights: N * resource")
    .Input("gradients: T")
    .Input("first: int64")
    .Input("last: int64")
    .Output("partials: double")
    .Attr("N: int >= 0")
    .Attr("T: list({float, half, bfloat16, double}) >= 0")
    .SetIsStateful()
    .SetShapeFn(lars_partials_shape);

REGISTER_OP("LarsUpdate")
    .Input("weights: N * resource")
    .Input("velocities: N * resource")
    .Input("gradients: T")
    .Input("ratios: double")
    .Input("decays: double")
    .Input("learning_rate: double")
    .Input("momentum: double")
    .Attr("nesterov: bool")
    .Attr("N: int >= 0")
    .Attr("T: list({float, half, bfloat16, double}) >= 0")
    .SetIsStateful()
    .SetShapeFn(lars_update_shape);

REGISTER_OP("LambPartials")
    .Input("weights: N * resource")
    .Input("first_moments: N * resource")
    .Input("second_moments: N * resource")
    .Input("gradients: T")
    .Input("decays: double")
    .Input("beta_1: double")
    .Input("beta_2: double")
    .Input("epsilon: double")
    .Input("step: int64")
    .Input("first: int64")
    .Input("last: int64")
    .Output("partials: double")
    .Attr("N: int >= 0")
    .Attr("T: list({float, half, bfloat16, double}) >= 0")
    .SetIsStateful()
    .SetShapeFn(lamb_partials_shape);

REGISTER_OP("LambUpdate")
    .Input("weights: N * resource")
    .Input("first_moments: N * resource")
    .Input("second_moments: N * resource")
    .Input("gradients: T")
    .Input("ratios: double")
    .Input("decays: double")
    .Input("learning_rate: double")
    .Input("beta_1: double")
    .Input("beta_2: double")
    .Input("epsilon: double")
    .Input("step: int64")
    .Attr("N: int >= 0")
    .Attr("T: list({float, half, bfloat16, double}) >= 0")
    .SetIsStateful()
    .SetShapeFn(lamb_update_shape);

REGISTER_OP("LarsLayerSums")
    .Input("sizes: int64")
    .Input("partials: double")
    .Output("sums: double")
    .SetShapeFn(layer_sums_shape);

// ---- Kernels ----

// The op status for a kernel's status. Arguments were checked before, so the only possible failure is a lack of memory.
absl::Status told(int status) {
  if (status == LARS_OK) return absl::OkStatus();
  if (status == LARS_OUT_OF_MEMORY) return absl::ResourceExhaustedError("Out of memory for the list of blocks.");
  return absl::InternalError("The kernel refused its arguments.");
}

// Reads the ratios and the learning rate of an update into the layers.
absl::Status read_scales(OpKernelContext* context, std::vector<lars_layer>* layers) {
  const double* ratios = nullptr;
  double learning_rate = 0;
  TF_RETURN_IF_ERROR(read_vector(context, "ratios", layers->size(), &ratios));
  TF_RETURN_IF_ERROR(read_scalar(context, "learning_rate", &learning_rate));
  for (size_t number = 0; number < layers->size(); ++number) {
    (*layers)[number].scale = learning_rate * ratios[number];
  }
  return absl::OkStatus();
}

class LarsPartialsOp : public ListKernel {
 public:
  explicit LarsPartialsOp(OpKernelConstruction* context) : ListKernel(context, {"weights"}) {}

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kRead);
    std::vector<lars_layer> layers;
    OP_REQUIRES_OK(context, gather(context, &variables, &layers));
    int64_t first = 0, last = 0;
    double* partials = nullptr;
    OP_REQUIRES_OK(context, allocate_partials(context, layers, &first, &last, &partials));
    const hvds::DeviceThreads threads(context);
    OP_REQUIRES_OK(context, told(lars_partials(layers.data(), layers.size(), first, last, partials, threads.get())));
  }
};

class LarsUpdateOp : public ListKernel {
 public:
  explicit LarsUpdateOp(OpKernelConstruction* context) : ListKernel(context, {"weights", "velocities"}) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
  }

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kUpdate);
    std::vector<lars_layer> layers;
    lars_rule rule{0, nesterov_};
    OP_REQUIRES_OK(context, read_scalar(context, "momentum", &rule.momentum));
    OP_REQUIRES_OK(context, gather(context, &variables, &layers));
    OP_REQUIRES_OK(context, read_scales(context, &layers));
    OP_REQUIRES_OK(context, read_decays(context, &layers));
    OP_REQUIRES_OK(context, make_writable(context, variables, &layers));
    const hvds::DeviceThreads threads(context);
    OP_REQUIRES_OK(context, told(lars_update(layers.data(), layers.size(), &rule, threads.get())));
  }

 private:
  bool nesterov_ = false;
};

class LambPartialsOp : public ListKernel {
 public:
  explicit LambPartialsOp(OpKernelConstruction* context)
      : ListKernel(context, {"weights", "first_moments", "second_moments"}) {}

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
    const hvds::DeviceThreads threads(context);
    OP_REQUIRES_OK(context,
                   told(lamb_partials(layers.data(), layers.size(), &rule, first, last, partials, threads.get())));
  }
};

class LambUpdateOp : public ListKernel {
 public:
  explicit LambUpdateOp(OpKernelConstruction* context)
      : ListKernel(context, {"weights", "first_moments", "second_moments"}) {}

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kUpdate);
    std::vector<lars_layer> layers;
    lamb_rule rule{};
    OP_REQUIRES_OK(context, read_rule(context, &rule));
    OP_REQUIRES_OK(context, gather(context, &variables, &layers));
    OP_REQUIRES_OK(context, read_scales(context, &layers));
    OP_REQUIRES_OK(context, read_decays(context, &layers));
    OP_REQUIRES_OK(context, make_writable(context, variables, &layers));
    const hvds::DeviceThreads threads(context);
    OP_REQUIRES_OK(context, told(lamb_update(layers.data(), layers.size(), &rule, threads.get())));
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
    OP_REQUIRES_OK(context, told(lars_layer_sums(sizes.vec<int64_t>().data(), count, partials.matrix<double>().data(),
                                                 partials.dim_size(0), columns, sums->matrix<double>().data())));
  }
};

REGISTER_KERNEL_BUILDER(Name("LarsPartials").Device(DEVICE_CPU), LarsPartialsOp);
REGISTER_KERNEL_BUILDER(Name("LarsUpdate").Device(DEVICE_CPU), LarsUpdateOp);
REGISTER_KERNEL_BUILDER(Name("LambPartials").Device(DEVICE_CPU), LambPartialsOp);
REGISTER_KERNEL_BUILDER(Name("LambUpdate").Device(DEVICE_CPU), LambUpdateOp);
REGISTER_KERNEL_BUILDER(Name("LarsLayerSums").Device(DEVICE_CPU), LarsLayerSumsOp);

}  // namespace
}  // namespace lars
