// TensorFlow ops for values at places of variables; the loops are in places.h.
#include "places_op.h"

#include <cstring>
#include <vector>

#include "../common/variables_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

absl::Status vectors_shape(InferenceContext* c) {
  ShapeHandle vector;
  for (const char* name : {"values", "places"}) {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c->input(name, &shapes));
    for (const ShapeHandle& shape : shapes) TF_RETURN_IF_ERROR(c->WithRank(shape, 1, &vector));
  }
  return absl::OkStatus();
}

// All are stateful, as they write variables: graph optimization leaves them in place.

// Puts values at places of the vector that the variables form together; `everywhere`: at each place, in order.
REGISTER_OP("HvdServersPut")
    .Input("variables: N * resource")
    .Input("values: float")
    .Input("places: int32")
    .Input("everywhere: bool")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn(vectors_shape);

// Adds values at places of a variable.
REGISTER_OP("HvdServersAdd")
    .Input("sum: resource")
    .Input("values: float")
    .Input("places: int32")
    .SetIsStateful()
    .SetShapeFn(vectors_shape);

// Returns the parameters at places, and records them in the negated copy kept for their receiver.
REGISTER_OP("HvdServersSend")
    .Input("negated: resource")
    .Input("parameters: float")
    .Input("places: int32")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle vector;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &vector));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &vector));
      c->set_output(0, vector);
      return absl::OkStatus();
    });

// Float32 variables that together form a vector, in the order in which they were added; they are locked.
class Vector {
 public:
  explicit Vector(Variables& variables) : variables_(variables) {}

  absl::Status add(const char* of, size_t count) {
    for (size_t number = 0; number < count; ++number) {
      const Tensor* value = nullptr;
      TF_RETURN_IF_ERROR(variables_.value(number, &value));
      if (value->dtype() != tensorflow::DT_FLOAT) {
        return invalid_argument("Expected ", of, " of float, got ", DataTypeString(value->dtype()), ".");
      }
      ends_.push_back(size() + value->NumElements());
    }
    return absl::OkStatus();
  }

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // Prepares the vector for writing, after all checks.
  absl::Status open(OpKernelContext* context) {
    memory_.resize(ends_.size());
    for (size_t number = 0; number < ends_.size(); ++number) {
      TF_RETURN_IF_ERROR(variables_.writable(context, number, &memory_[number]));
    }
    return absl::OkStatus();
  }

  float* first() const { return memory_.front(); }

  hvds_pieces pieces() const { return {memory_.data(), ends_.data(), static_cast<int64_t>(ends_.size())}; }

  // Writes all elements.
  void fill(const float* values) const {
    int64_t begin = 0;
    for (size_t number = 0; number < ends_.size(); ++number) {
      const auto bytes = static_cast<size_t>(ends_[number] - begin) * sizeof(float);
      if (bytes > 0) std::memcpy(memory_[number], values + begin, bytes);
      begin = ends_[number];
    }
  }

 private:
  Variables& variables_;
  std::vector<int64_t> ends_;
  std::vector<float*> memory_;
};

class PutOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor *values = nullptr, *places = nullptr, *everywhere = nullptr;
    OP_REQUIRES_OK(context, context->input("values", &values));
    OP_REQUIRES_OK(context, context->input("places", &places));
    OP_REQUIRES_OK(context, context->input("everywhere", &everywhere));
    OP_REQUIRES(context, everywhere->dims() == 0, invalid_argument("Expected everywhere as one truth value."));
    Variables variables(Access::kUpdate);
    OP_REQUIRES_OK(context, variables.add(context, "variables"));
    OP_REQUIRES_OK(context, variables.lock());
    Vector vector(variables);
    OP_REQUIRES_OK(context, vector.add("variables", context->num_inputs() - 3));
    const bool all = everywhere->scalar<bool>()();
    OP_REQUIRES_OK(context, all ? check_all(*values, *places, vector.size())
                                : check_some(*values, *places, vector.size()));
    OP_REQUIRES_OK(context, vector.open(context));
    const float* from = values->flat<float>().data();
    if (all) return vector.fill(from);
    const hvds_pieces pieces = vector.pieces();
    hvds_put_places(&pieces, from, places->flat<int32_t>().data(), places->NumElements());
  }

 private:
  static absl::Status check_all(const Tensor& values, const Tensor& places, int64_t size) {
    if (values.shape() == TensorShape({size}) && places.NumElements() == 0) return absl::OkStatus();
    return invalid_argument("Expected values [", size, "] and no places, got ", values.shape().DebugString(), " and ",
                            places.shape().DebugString(), ".");
  }

  static absl::Status check_some(const Tensor& values, const Tensor& places, int64_t size) {
    TF_RETURN_IF_ERROR(check_values(values, places));
    return check_places(places, size);
  }
};

class AddOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor *values = nullptr, *places = nullptr;
    OP_REQUIRES_OK(context, context->input("values", &values));
    OP_REQUIRES_OK(context, context->input("places", &places));
    Variables variables(Access::kUpdate);
    OP_REQUIRES_OK(context, variables.add(context, "sum"));
    OP_REQUIRES_OK(context, variables.lock());
    Vector vector(variables);
    OP_REQUIRES_OK(context, vector.add("a sum", 1));
    OP_REQUIRES_OK(context, check_values(*values, *places));
    OP_REQUIRES_OK(context, check_places(*places, vector.size()));
    OP_REQUIRES_OK(context, vector.open(context));
    hvds_add_places(vector.first(), values->flat<float>().data(), places->flat<int32_t>().data(), places->NumElements());
  }
};

class SendOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor *parameters = nullptr, *places = nullptr;
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, context->input("parameters", &parameters));
    OP_REQUIRES_OK(context, context->input("places", &places));
    Variables variables(Access::kUpdate);
    OP_REQUIRES_OK(context, variables.add(context, "negated"));
    OP_REQUIRES_OK(context, variables.lock());
    Vector vector(variables);
    OP_REQUIRES_OK(context, vector.add("a negated copy", 1));
    OP_REQUIRES(context, parameters->shape() == TensorShape({vector.size()}),
                invalid_argument("Expected parameters [", vector.size(), "], got ", parameters->shape().DebugString(),
                                 "."));
    OP_REQUIRES_OK(context, check_places(*places, vector.size()));
    OP_REQUIRES_OK(context, context->allocate_output(0, places->shape(), &values));
    OP_REQUIRES_OK(context, vector.open(context));
    hvds_send_places(parameters->flat<float>().data(), vector.first(), places->flat<int32_t>().data(),
              values->flat<float>().data(), places->NumElements());
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdServersPut").Device(tensorflow::DEVICE_CPU), PutOp);
REGISTER_KERNEL_BUILDER(Name("HvdServersAdd").Device(tensorflow::DEVICE_CPU), AddOp);
REGISTER_KERNEL_BUILDER(Name("HvdServersSend").Device(tensorflow::DEVICE_CPU), SendOp);

}  // namespace
}  // namespace hvds
