// TensorFlow ops for the steps of optimizers on servers; the arithmetic is in apply.h.
#include "apply.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "../common/variables_op.h"
#include "places_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::OpInputList;

constexpr const char* kNames[HVDS_OPTIMIZERS] = {
    "SGD",     "Momentum",        "Nesterov",        "Adam",                    "Adagrad",
    "RMSprop", "RMSpropMomentum", "RMSpropCentered", "RMSpropCenteredMomentum",
};

constexpr const char* kOptimizers =
    "optimizer: {'SGD', 'Momentum', 'Nesterov', 'Adam', 'Adagrad', 'RMSprop', 'RMSpropMomentum', 'RMSpropCentered', "
    "'RMSpropCenteredMomentum'}";

absl::Status scalars_shape(InferenceContext* c) {
  ShapeHandle scalar;
  for (const char* name : {"numbers", "decay", "decay_rate"}) {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c->input(name, &shapes));
    for (const ShapeHandle& shape : shapes) TF_RETURN_IF_ERROR(c->WithRank(shape, 0, &scalar));
  }
  return absl::OkStatus();
}

// Both are stateful, as they write variables: graph optimization leaves them in place.

// A step for all elements.
REGISTER_OP("HvdServersApply")
    .Input("weights: resource")
    .Input("slots: S * resource")
    .Input("gradient: float")
    .Input("numbers: N * float")
    .Input("decay: float")
    .Input("decay_rate: float")
    .Attr(kOptimizers)
    .Attr("decays: bool")
    .Attr("S: int >= 0")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn(scalars_shape);

// A step only for the elements at the places whose gradient is given.
REGISTER_OP("HvdServersApplyPlaces")
    .Input("weights: resource")
    .Input("slots: S * resource")
    .Input("gradient: float")
    .Input("places: int32")
    .Input("numbers: N * float")
    .Input("decay: float")
    .Input("decay_rate: float")
    .Attr(kOptimizers)
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

// A step of an optimizer; subclasses determine which elements it covers.
class StepOp : public OpKernel {
 public:
  explicit StepOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    bool decays = false;
    int slots = 0, numbers = 0;
    OP_REQUIRES_OK(context, context->GetAttr("optimizer", &name));
    OP_REQUIRES_OK(context, context->GetAttr("decays", &decays));
    OP_REQUIRES_OK(context, context->GetAttr("S", &slots));
    OP_REQUIRES_OK(context, context->GetAttr("N", &numbers));
    const auto* found = std::find(std::begin(kNames), std::end(kNames), name);  // the op's registration allows no other
    step_.optimizer = static_cast<hvds_optimizer>(found - std::begin(kNames));
    step_.decays = decays;
    const int expected[] = {hvds_slot_count(step_.optimizer), hvds_number_count(step_.optimizer)};
    OP_REQUIRES(context, slots == expected[0] && numbers == expected[1],
                invalid_argument("Expected ", expected[0], " slots and ", expected[1], " numbers for ", name, ", got ",
                                 slots, " and ", numbers));
  }

  void Compute(OpKernelContext* context) override {
    hvds_step step = step_;
    Variables variables(Access::kUpdate);
    float* values[1 + HVDS_MOST_SLOTS] = {};
    OP_REQUIRES_OK(context, read_numbers(context, &step));
    for (const char* name : {"weights", "slots"}) OP_REQUIRES_OK(context, variables.add(context, name));
    OP_REQUIRES_OK(context, variables.lock());
    OP_REQUIRES_OK(context, check(context, variables));
    for (int number = 0; number < count(); ++number) {
      OP_REQUIRES_OK(context, variables.writable(context, number, values + number));
    }
    const DeviceThreads threads(context);
    apply(context, step, values, threads.get());
  }

 protected:
  virtual absl::Status check(OpKernelContext* context, const Variables& variables) const = 0;

  // Makes the step, given the weights and the slots, after all checks.
  virtual void apply(OpKernelContext* context, const hvds_step& step, float* const* values,
                     const hvds_parallel* parallel) const = 0;

  // Checks that weights and slots have this shape, which is that of `whose`.
  absl::Status check_shapes(const Variables& variables, const TensorShape& shape, const char* whose) const {
    for (int number = 0; number < count(); ++number) {
      const Tensor* value = nullptr;
      TF_RETURN_IF_ERROR(variables.value(number, &value));
      if (value->dtype() == tensorflow::DT_FLOAT && value->shape() == shape) continue;
      return invalid_argument("Expected ", number == 0 ? "weights" : "each slot", " of float and of the ", whose,
                              " shape ", shape.DebugString(), ", got ", DataTypeString(value->dtype()), " ",
                              value->shape().DebugString());
    }
    return absl::OkStatus();
  }

 private:
  // The number of weights and slots.
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

  hvds_step step_{};
};

class ApplyOp : public StepOp {
 public:
  using StepOp::StepOp;

 protected:
  absl::Status check(OpKernelContext* context, const Variables& variables) const override {
    const Tensor* gradient = nullptr;
    TF_RETURN_IF_ERROR(context->input("gradient", &gradient));
    return check_shapes(variables, gradient->shape(), "gradient's");
  }

  void apply(OpKernelContext* context, const hvds_step& step, float* const* values,
             const hvds_parallel* parallel) const override {
    const Tensor* gradient = nullptr;
    OP_REQUIRES_OK(context, context->input("gradient", &gradient));
    hvds_apply(&step, values[0], values + 1, gradient->flat<float>().data(), gradient->NumElements(), parallel);
  }
};

class ApplyPlacesOp : public StepOp {
 public:
  using StepOp::StepOp;

 protected:
  absl::Status check(OpKernelContext* context, const Variables& variables) const override {
    const Tensor *gradient = nullptr, *places = nullptr, *weights = nullptr;
    TF_RETURN_IF_ERROR(context->input("gradient", &gradient));
    TF_RETURN_IF_ERROR(context->input("places", &places));
    TF_RETURN_IF_ERROR(variables.value(0, &weights));
    TF_RETURN_IF_ERROR(check_shapes(variables, TensorShape({weights->NumElements()}), "flat weights'"));
    TF_RETURN_IF_ERROR(check_values(*gradient, *places));
    return check_places(*places, weights->NumElements());
  }

  void apply(OpKernelContext* context, const hvds_step& step, float* const* values,
             const hvds_parallel* parallel) const override {
    const Tensor *gradient = nullptr, *places = nullptr;
    OP_REQUIRES_OK(context, context->input("gradient", &gradient));
    OP_REQUIRES_OK(context, context->input("places", &places));
    hvds_apply_places(&step, values[0], values + 1, gradient->flat<float>().data(), places->flat<int32_t>().data(),
                      places->NumElements(), parallel);
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdServersApply").Device(tensorflow::DEVICE_CPU), ApplyOp);
REGISTER_KERNEL_BUILDER(Name("HvdServersApplyPlaces").Device(tensorflow::DEVICE_CPU), ApplyPlacesOp);

}  // namespace
}  // namespace hvds
