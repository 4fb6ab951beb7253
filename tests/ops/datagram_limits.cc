// The limits of phases (ops/datagrams/limits.h) if the rate changes from round to round, in simulated time:
// datagram_limits MULTIPLE SLACK LEAST BYTES RATE...
//
// Each phase lasts as long as its bytes take at its RATE, in bits per second, unless its limit ends it. Prints, for
// each phase, the time it would last and the limit, in seconds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "datagrams/limits.h"

int main(int count, char** arguments) {
  hvds_datagrams_settings settings{};
  settings.multiple = std::atof(arguments[1]);
  settings.slack = std::atof(arguments[2]);
  settings.least = std::atof(arguments[3]);
  const int64_t bytes = std::atoll(arguments[4]);
  hvds::Limits limits(settings);
  for (int i = 5; i < count; ++i) {
    const double rate = std::atof(arguments[i]), lasts = 8.0 * static_cast<double>(bytes) / rate;
    const double limit = static_cast<double>(limits.of(0, bytes, rate)) / hvds::kSecond;
    std::printf("%.9g %.9g\n", lasts, limit);
    limits.remember(0, std::min(lasts, limit));
  }
  return 0;
}
