// TensorFlow's variables behind an op's resource handles, for reading or for updating in place.
#ifndef HVD_SPARSE_OPS_VARIABLES_OP_H_
#define HVD_SPARSE_OPS_VARIABLES_OP_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "large_pages.h"
#include "op_support.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace hvds {

enum class Access { kRead, kUpdate };

// Looks up variables and holds the locks of all of them from lock() until it is destroyed: shared locks for reading, so
// that no value is aliased (a variable that also gets sparse updates must not be), exclusive ones for updating. Locks
// are taken in the order of their addresses, as TensorFlow's own ops do.
class Variables {
 public:
  explicit Variables(Access access) : access_(access) {}
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

  ~Variables() {
    for (tensorflow::Var* variable : locked_) {
      access_ == Access::kUpdate ? variable->mu()->unlock() : variable->mu()->unlock_shared();
    }
  }

  // Looks up the variables of an input that is a list of handles.
  absl::Status add(OpKernelContext* context, const char* input) {
    int begin = 0, end = 0;
    TF_RETURN_IF_ERROR(context->op_kernel().InputRange(input, &begin, &end));
    for (int number = begin; number < end; ++number) {
      tensorflow::core::RefCountPtr<tensorflow::Var> variable;
      TF_RETURN_IF_ERROR(
          tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, number), &variable));
      variables_.push_back(std::move(variable));
    }
    return absl::OkStatus();
  }

  // Locks all variables added. A variable to be updated must have been added only once.
  absl::Status lock() {
    std::vector<tensorflow::Var*> distinct;
    for (const auto& variable : variables_) distinct.push_back(variable.get());
    std::sort(distinct.begin(), distinct.end(), [](auto* one, auto* other) { return one->mu() < other->mu(); });
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    if (access_ == Access::kUpdate && distinct.size() != variables_.size()) {
      return invalid_argument("Expected each variable to be updated once, got ", distinct.size(),
                              " different ones among ", variables_.size(), " weights and slots");
    }
    for (tensorflow::Var* variable : distinct) {
      access_ == Access::kUpdate ? variable->mu()->lock() : variable->mu()->lock_shared();
      locked_.push_back(variable);
    }
    return absl::OkStatus();
  }

  // The value of variable `number`, in the order of adding; valid while this object lives.
  absl::Status value(size_t number, const Tensor** value) const {
    tensorflow::Var& variable = *variables_[number];
    if (!variable.is_initialized) {
      return absl::FailedPreconditionError(
          absl::StrCat("Expected variables with values, got one without: initialise it first (number ", number,
                       " of weights and slots, ", variable.DebugString(), ")."));
    }
    *value = variable.tensor();
    return absl::OkStatus();
  }

  // Whether the value has other holders: then it must not be overwritten.
  bool is_shared(size_t number) const { return !held(number).RefCountIsOne(); }

  const Tensor& held(size_t number) const { return *variables_[number]->tensor(); }

  void replace(size_t number, const Tensor& tensor) const { *variables_[number]->tensor() = tensor; }

  // The memory of a value that is to be written. If the value has other holders, they keep it and the variable gets a
  // copy.
  absl::Status writable(OpKernelContext* context, size_t number, float** memory) const {
    if (is_shared(number)) {
      Tensor copy;
      TF_RETURN_IF_ERROR(allocate_like(context, number, &copy));
      prefer_large_pages(copy.data(), copy.TotalBytes());
      if (copy.TotalBytes() > 0) std::memcpy(copy.data(), held(number).data(), copy.TotalBytes());
      replace(number, copy);
    }
    *memory = static_cast<float*>(held(number).data());
    return absl::OkStatus();
  }

  // Memory for a new value of a variable.
  absl::Status allocate_like(OpKernelContext* context, size_t number, Tensor* tensor) const {
    tensorflow::AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    return context->allocate_temp(held(number).dtype(), held(number).shape(), tensor, attributes);
  }

 private:
  const Access access_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;  // must outlive their locks
  std::vector<tensorflow::Var*> locked_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_VARIABLES_OP_H_
