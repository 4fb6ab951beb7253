#include "datagrams.h"

#include <errno.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "endpoint.h"
#include "window.h"

namespace hvds {
namespace {

class Endpoints {
 public:
  static Endpoints& instance() {
    static auto* all = new Endpoints;  // never destroyed, as threads may average until the process ends
    return *all;
  }

  int64_t add(std::shared_ptr<Endpoint> endpoint) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_[++added_] = std::move(endpoint);
    return added_;
  }

  std::shared_ptr<Endpoint> find(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find(number);
    return found == all_.end() ? nullptr : found->second;
  }

  std::shared_ptr<Endpoint> remove(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find(number);
    if (found == all_.end()) return nullptr;
    std::shared_ptr<Endpoint> endpoint = std::move(found->second);
    all_.erase(found);
    return endpoint;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Endpoint>> all_;
  int64_t added_ = 0;
};

void tell(char* message, const std::string& text) { std::snprintf(message, HVDS_MESSAGE, "%s", text.c_str()); }

bool positive(double value) { return std::isfinite(value) && value > 0; }

// Why settings are invalid; empty if they are valid.
std::string fault_of(const hvds_datagrams_settings& settings) {
  if (settings.ranks < 1 || settings.ranks > HVDS_DATAGRAM_RANKS || settings.me < 0 || settings.me >= settings.ranks) {
    return "expected 1 to " + std::to_string(HVDS_DATAGRAM_RANKS) + " ranks and one of them, got " +
           std::to_string(settings.me) + " of " + std::to_string(settings.ranks);
  }
  if (settings.size < 1 || (settings.size + settings.ranks - 1) / settings.ranks > int64_t{UINT32_MAX}) {
    return "expected 1 to 2^32 - 1 elements for each rank, got a vector of " + std::to_string(settings.size);
  }
  if (settings.datagram < kStateBytes || settings.datagram > kMostDatagram) {
    return "expected datagrams of " + std::to_string(kStateBytes) + " to " + std::to_string(kMostDatagram) +
           " bytes, got " + std::to_string(settings.datagram);
  }
  const bool bounded = settings.rate >= 0 && std::isfinite(settings.rate) && positive(settings.multiple) &&
                       positive(settings.slack) && positive(settings.least) && positive(settings.patience);
  return bounded ? "" : "expected finite rate, multiple, slack, least and patience above 0";
}

}  // namespace
}  // namespace hvds

using hvds::Endpoints;

int64_t hvds_datagrams_open(const hvds_datagrams_settings* settings, const char* address, int32_t* port,
                            char* message) {
  const std::string fault = hvds::fault_of(*settings);
  hvds::Address own;
  if (!fault.empty() || !hvds::parse_address(address, *port, &own)) {
    hvds::tell(message, fault.empty() ? "expected a numeric address, got " + std::string(address) : fault);
    return -EINVAL;
  }
  int failed = 0;
  try {
    auto endpoint = std::make_shared<hvds::Endpoint>(*settings);
    failed = endpoint->open(own);
    if (failed == 0) {
      *port = endpoint->port();
      if (*port > 0) return Endpoints::instance().add(std::move(endpoint));
      failed = -*port;
    }
  } catch (const std::bad_alloc&) {
    failed = ENOMEM;
  }
  hvds::tell(message, std::string(address) + ": " + std::strerror(failed));
  return -failed;
}

int32_t hvds_datagrams_join(int64_t endpoint, const char* const* addresses, const int32_t* ports,
                            const uint32_t* starts, const uint8_t* key, char* message) {
  const auto found = Endpoints::instance().find(endpoint);
  if (found == nullptr) {
    hvds::tell(message, "the channel is closed");
    return EBADF;
  }
  std::vector<hvds::Address> parsed(found->ranks());
  for (size_t rank = 0; rank < parsed.size(); ++rank) {
    if (hvds::parse_address(addresses[rank], ports[rank], &parsed[rank])) continue;
    hvds::tell(message, "expected numeric addresses and ports, got " + std::string(addresses[rank]));
    return EINVAL;
  }
  const int failed = found->join(parsed, starts, key);
  if (failed != 0) hvds::tell(message, std::strerror(failed));
  return failed;
}

int32_t hvds_datagrams_fits(int64_t endpoint, int64_t size, int64_t ranks) {
  const auto found = Endpoints::instance().find(endpoint);
  return found != nullptr && found->size() == size && found->ranks() == ranks ? 1 : 0;
}

int64_t hvds_datagrams_average(int64_t endpoint, const float* vector, int32_t gives, int64_t round, float* mean,
                               int64_t* counts, char* message) {
  const auto found = Endpoints::instance().find(endpoint);
  if (found == nullptr) {
    hvds::tell(message, "the channel is closed");
    return -EBADF;
  }
  if (round < 0 || round > int64_t{UINT32_MAX} - 1) {
    hvds::tell(message, "expected a round from 0 to 2^32 - 2, got " + std::to_string(round));
    return -EINVAL;
  }
  std::string why;
  const int64_t averaged = found->average(vector, gives != 0, round, mean, counts, &why);
  if (averaged < 0) hvds::tell(message, why);
  return averaged;
}

int32_t hvds_datagrams_report_of(int64_t endpoint, hvds_datagrams_report* report) {
  const auto found = Endpoints::instance().find(endpoint);
  if (found == nullptr) return EBADF;
  found->report(report);
  return 0;
}

int64_t hvds_datagrams_record(int64_t endpoint, int64_t* segment, uint64_t* contributors, uint8_t* came) {
  const auto found = Endpoints::instance().find(endpoint);
  return found == nullptr ? -EBADF : found->record(segment, contributors, came);
}

void hvds_datagrams_close(int64_t endpoint) {
  const auto found = Endpoints::instance().remove(endpoint);
  if (found != nullptr) found->close();
}

struct hvds_window {
  hvds::Window window;
};

hvds_window* hvds_window_new(void) { return new hvds_window; }
int32_t hvds_window_accept(hvds_window* window, uint64_t counter) { return window->window.accept(counter) ? 1 : 0; }
void hvds_window_delete(hvds_window* window) { delete window; }
