// TensorFlow's operation for the steps of optimizers on servers; the arithmetic is in apply.h.
#include "apply.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "../common/variables_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvds {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr const char* kNames[HVDS_OPTIMIZERS] = {
    "SGD",     "Momentum",        "Nesterov",        "Adam",                    "Adagrad",
    "RMSprop", "RMSpropMomentum", "RMSpropCentered", "RMSpropCenteredMomentum",
};

absl::Status scalars_shape(InferenceContext* c) {
  ShapeHandle scalar;
  for (const char* name : {"numbers", "decay", "decay_rate"}) {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c->input(name, &shapes));
    for (const ShapeHandle& shape : shapes) TF_RETURN_IF_ERROR(c->WithRank(shape, 0, &scalar));
  }
  return absl::OkStatus();
}

// Stateful, as it writes variables: the graph optimiser leaves it where it is.
REGISTER_OP("HvdServersApply")
    .Input("weights: resource")
    .Input("slots: S * resource")
    .Input("gradient: float")
    .Input("numbers: N * float")
    .Input("decay: float")
    .Input("decay_rate: float")
    .Attr(
        "optimizer: {'SGD', 'Momentum', 'Nesterov', 'Adam', 'Adagrad', 'RMSprop', 'RMSpropMomentum', "
        "'RMSpropCentered', 'RMSpropCenteredMomentum'}")
    .Attr("decays: bool")
    .Attr("S: int >= 0")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn(scalars_shape);

absl::Status read_scalar(const Tensor& tensor, const char* name, float* number) {
  if (tensor.dims() != 0) {
    return invalid_argument("Expected ", name, " as one number, got shape ", tensor.shape().DebugString());
  }
  *number = tensor.scalar<float>()();
  return absl::OkStatus();
}

class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    bool decays = false;
    int slots = 0, numbers = 0;
    OP_REQUIRES_OK(context, context->GetAttr("optimizer", &name));
    OP_REQUIRES_OK(context, context->GetAttr("decays", &decays));
    OP_REQUIRES_OK(context, context->GetAttr("S", &slots));
    OP_REQUIRES_OK(context, context->GetAttr("N", &numbers));
    const auto* found = std::find(std::begin(kNames), std::end(kNames), name);  // the registration admits no other
    step_.optimizer = static_cast<hvds_optimizer>(found - std::begin(kNames));
    step_.decays = decays;
    const int expected[] = {hvds_slot_count(step_.optimizer), hvds_number_count(step_.optimizer)};
    OP_REQUIRES(context, slots == expected[0] && numbers == expected[1],
                invalid_argument("Expected ", expected[0], " slots and ", expected[1], " numbers for ", name, ", got ",
                                 slots, " and ", numbers));
  }

  void Compute(OpKernelContext* context) override {
    hvds_step step = step_;
    const Tensor* gradient = nullptr;
    Variables variables(Access::kUpdate);
    float* values[1 + HVDS_MOST_SLOTS] = {};
    OP_REQUIRES_OK(context, read_numbers(context, &step));
    OP_REQUIRES_OK(context, context->input("gradient", &gradient));
    for (const char* name : {"weights", "slots"}) OP_REQUIRES_OK(context, variables.add(context, name));
    OP_REQUIRES_OK(context, variables.lock());
    for (int number = 0; number < count(); ++number) OP_REQUIRES_OK(context, check(variables, number, *gradient));
    for (int number = 0; number < count(); ++number) {
      OP_REQUIRES_OK(context, variables.writable(context, number, values + number));
    }
    const DeviceThreads threads(context);
    hvds_apply(&step, values[0], values + 1, gradient->flat<float>().data(), gradient->NumElements(), threads.get());
  }

 private:
  // Of the weights and the slots.
  int count() const { return 1 + hvds_slot_count(step_.optimizer); }

  static absl::Status read_numbers(OpKernelContext* context, hvds_step* step) {
    OpInputList numbers;
    TF_RETURN_IF_ERROR(context->input_list("numbers", &numbers));
    for (int number = 0; number < numbers.size(); ++number) {
      TF_RETURN_IF_ERROR(read_scalar(numbers[number], "each of numbers", step->numbers + number));
    }
    const Tensor *decay = nullptr, *decay_rate = nullptr;
    TF_RETURN_IF_ERROR(context->input("decay", &decay));
    TF_RETURN_IF_ERROR(context->input("decay_rate", &decay_rate));
    TF_RETURN_IF_ERROR(read_scalar(*decay, "decay", &step->decay));
    return read_scalar(*decay_rate, "decay_rate", &step->decay_rate);
  }

  static absl::Status check(const Variables& variables, int number, const Tensor& gradient) {
    const Tensor* value = nullptr;
    TF_RETURN_IF_ERROR(variables.value(number, &value));
    if (value->dtype() == tensorflow::DT_FLOAT && value->shape() == gradient.shape()) return absl::OkStatus();
    return invalid_argument("Expected ", number == 0 ? "weights" : "each slot",
                            " of float and of the gradient's shape ", gradient.shape().DebugString(), ", got ",
                            DataTypeString(value->dtype()), " ", value->shape().DebugString());
  }

  hvds_step step_{};
};

REGISTER_KERNEL_BUILDER(Name("HvdServersApply").Device(tensorflow::DEVICE_CPU), ApplyOp);

}  // namespace
}  // namespace hvds
