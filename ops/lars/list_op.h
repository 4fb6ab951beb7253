// What the ops on lists of tensors share on every device: their arguments, checked.
#ifndef LARS_LIST_OP_H_
#define LARS_LIST_OP_H_

#include <cstring>
#include <utility>
#include <vector>

#include "../common/op_support.h"
#include "../common/variables_op.h"
#include "list.h"

namespace lars {

using hvds::Access;
using hvds::invalid_argument;
using hvds::Variables;
using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

inline lars_dtype dtype_of(DataType type) {
  if (type == tensorflow::DT_HALF) return LARS_FLOAT16;
  if (type == tensorflow::DT_BFLOAT16) return LARS_BFLOAT16;
  if (type == tensorflow::DT_DOUBLE) return LARS_FLOAT64;
  CHECK_EQ(type, tensorflow::DT_FLOAT);  // the op's registration allows no other
  return LARS_FLOAT32;
}

template <typename Number>
absl::Status read_scalar(OpKernelContext* context, const char* name, Number* number) {
  const Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (tensor->dims() != 0) {
    return invalid_argument("Expected ", name, " as one number, got shape ", tensor->shape().DebugString());
  }
  *number = tensor->scalar<Number>()();
  return absl::OkStatus();
}

inline absl::Status read_vector(OpKernelContext* context, const char* name, size_t count, const double** numbers) {
  const Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (tensor->dims() != 1 || tensor->NumElements() != static_cast<int64_t>(count)) {
    return invalid_argument("Expected ", name, " [", count, "], one for each weight, got shape ",
                            tensor->shape().DebugString());
  }
  *numbers = tensor->vec<double>().data();
  return absl::OkStatus();
}

inline absl::Status read_rule(OpKernelContext* context, lamb_rule* rule) {
  TF_RETURN_IF_ERROR(read_scalar(context, "beta_1", &rule->beta_1));
  TF_RETURN_IF_ERROR(read_scalar(context, "beta_2", &rule->beta_2));
  TF_RETURN_IF_ERROR(read_scalar(context, "epsilon", &rule->epsilon));
  TF_RETURN_IF_ERROR(read_scalar(context, "step", &rule->step));
  for (const double beta : {rule->beta_1, rule->beta_2}) {
    if (!(0 <= beta && beta < 1)) {
      return invalid_argument("Expected beta_1 and beta_2 in [0, 1), got ", rule->beta_1, " and ", rule->beta_2);
    }
  }
  if (!(rule->epsilon >= 0)) return invalid_argument("Expected epsilon of at least 0, got ", rule->epsilon);
  if (rule->step < 1) {
    return invalid_argument("Expected step of at least 1, as the first step has number 1, got ", rule->step);
  }
  return absl::OkStatus();
}

inline absl::Status check_like(const Tensor& gradient, const Tensor& variable, const char* role, int64_t number) {
  if (gradient.dtype() == variable.dtype() && gradient.shape() == variable.shape()) return absl::OkStatus();
  return invalid_argument("Expected ", role, " ", number, " and its gradient to have the same dtype and shape, got ",
                          DataTypeString(variable.dtype()), " ", variable.shape().DebugString(), " and ",
                          DataTypeString(gradient.dtype()), " ", gradient.shape().DebugString());
}

// Checks that there is a row of partial sums for each block of tensors of these sizes.
inline absl::Status check_rows(const Tensor& sizes, const Tensor& partials) {
  if (sizes.dims() != 1 || partials.dims() != 2) {
    return invalid_argument("Expected sizes [n] and partials [blocks, columns], got shapes ",
                            sizes.shape().DebugString(), " and ", partials.shape().DebugString());
  }
  const auto numbers = sizes.vec<int64_t>();
  const int64_t blocks = count_blocks(sizes.NumElements(), [&numbers](int64_t number) { return numbers(number); });
  if (blocks == partials.dim_size(0)) return absl::OkStatus();
  return invalid_argument("Expected a row of partials for each block of ", kBlock, " elements of the ",
                          sizes.NumElements(), " tensors, got ", partials.dim_size(0), " rows");
}

constexpr const char* kSlotRoles[] = {"weight", "slot 1 of weight", "slot 2 of weight"};

// An op on weights and the slots beside them: `variables` names the inputs that are lists of handles.
class ListKernel : public OpKernel {
 public:
  ListKernel(OpKernelConstruction* context, std::vector<const char*> variables)
      : OpKernel(context), variables_(std::move(variables)) {
    int count = 0;
    std::vector<DataType> types;
    OP_REQUIRES_OK(context, context->GetAttr("N", &count));
    OP_REQUIRES_OK(context, context->GetAttr("T", &types));
    OP_REQUIRES(context, types.size() == static_cast<size_t>(count),
                invalid_argument("Expected one gradient for each of the ", count, " weights, got ", types.size()));
  }

 protected:
  // Fills in a layer for each weight, except scale and decay, while `variables` holds the locks.
  absl::Status gather(OpKernelContext* context, Variables* variables, std::vector<lars_layer>* layers) const {
    for (const char* name : variables_) TF_RETURN_IF_ERROR(variables->add(context, name));
    TF_RETURN_IF_ERROR(variables->lock());
    OpInputList gradients;
    TF_RETURN_IF_ERROR(context->input_list("gradients", &gradients));
    layers->assign(gradients.size(), lars_layer{});
    for (int number = 0; number < gradients.size(); ++number) {
      lars_layer& layer = (*layers)[number];
      layer.gradient = gradients[number].data();
      layer.size = gradients[number].NumElements();
      layer.dtype = dtype_of(gradients[number].dtype());
      void** const places[] = {&layer.weight, &layer.slots[0], &layer.slots[1]};
      for (size_t role = 0; role < variables_.size(); ++role) {
        const Tensor* value = nullptr;
        const size_t index = role * gradients.size() + number;
        TF_RETURN_IF_ERROR(variables->value(index, &value));
        TF_RETURN_IF_ERROR(check_like(gradients[number], *value, kSlotRoles[role], number));
        *places[role] = value->data();
      }
    }
    return absl::OkStatus();
  }

  // Makes the layers' variables safe to write: if a value has other holders, they keep it and the variable gets a copy.
  // To be called after all checks, so that a rejected call has copied nothing.
  absl::Status make_writable(OpKernelContext* context, const Variables& variables,
                             std::vector<lars_layer>* layers) const {
    for (size_t number = 0; number < layers->size(); ++number) {
      lars_layer& layer = (*layers)[number];
      void** const places[] = {&layer.weight, &layer.slots[0], &layer.slots[1]};
      for (size_t role = 0; role < variables_.size(); ++role) {
        const size_t index = role * layers->size() + number;
        if (variables.is_shared(index)) {
          Tensor copy;
          TF_RETURN_IF_ERROR(variables.allocate_like(context, index, &copy));
          TF_RETURN_IF_ERROR(copy_elements(context, variables.held(index), &copy));
          variables.replace(index, copy);
        }
        *places[role] = variables.held(index).data();
      }
    }
    return absl::OkStatus();
  }

  static absl::Status read_decays(OpKernelContext* context, std::vector<lars_layer>* layers) {
    const double* decays = nullptr;
    TF_RETURN_IF_ERROR(read_vector(context, "decays", layers->size(), &decays));
    for (size_t number = 0; number < layers->size(); ++number) (*layers)[number].decay = decays[number];
    return absl::OkStatus();
  }

  // The requested range of blocks, and memory for their sums.
  static absl::Status allocate_partials(OpKernelContext* context, const std::vector<lars_layer>& layers, int64_t* first,
                                        int64_t* last, double** partials) {
    TF_RETURN_IF_ERROR(read_scalar(context, "first", first));
    TF_RETURN_IF_ERROR(read_scalar(context, "last", last));
    const int64_t blocks = lars_block_count(layers.data(), layers.size());
    if (*first < 0 || *first > *last || *last > blocks) {
      return invalid_argument("Expected 0 <= first <= last <= ", blocks, ", the number of blocks, got first ", *first,
                              " and last ", *last);
    }
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({*last - *first, 2}), &output));
    *partials = output->matrix<double>().data();
    return absl::OkStatus();
  }

 private:
  // Overridden for devices with memory of their own.
  virtual absl::Status copy_elements(OpKernelContext*, const Tensor& from, Tensor* to) const {
    if (from.TotalBytes() > 0) std::memcpy(to->data(), from.data(), from.TotalBytes());
    return absl::OkStatus();
  }

  const std::vector<const char*> variables_;
};

}  // namespace lars

#endif  // LARS_LIST_OP_H_
