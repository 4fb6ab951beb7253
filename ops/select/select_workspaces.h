// The scratch memory that the selection ops keep between their calls on the CPU.
#ifndef HVD_SPARSE_OPS_SELECT_WORKSPACES_H_
#define HVD_SPARSE_OPS_SELECT_WORKSPACES_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../common/op_support.h"
#include "select.h"

namespace hvds {

struct DestroyWorkspace {
  void operator()(hvds_workspace* workspace) const { hvds_workspace_destroy(workspace); }
};

using Workspace = std::unique_ptr<hvds_workspace, DestroyWorkspace>;

// The workspaces that a kernel keeps between its calls, as many as have been used at the same time.
class Workspaces {
 public:
  Workspace take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return Workspace(hvds_workspace_create());
    Workspace workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }

  void give_back(Workspace workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<Workspace> free_;
};

// A workspace for the duration of one call.
class Lease {
 public:
  explicit Lease(Workspaces& owner) : owner_(owner), workspace_(owner.take()) {}
  ~Lease() {
    if (workspace_ != nullptr) owner_.give_back(std::move(workspace_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  hvds_workspace* get() const { return workspace_.get(); }

 private:
  Workspaces& owner_;
  Workspace workspace_;
};

// The op status for a kernel's status. Arguments were checked before, so the only possible failure is a lack of memory.
inline absl::Status told(int status) {
  if (status == HVDS_OK) return absl::OkStatus();
  if (status == HVDS_OUT_OF_MEMORY) return absl::ResourceExhaustedError("Out of memory for the candidates.");
  return absl::InternalError("The kernel refused its arguments.");
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_WORKSPACES_H_
