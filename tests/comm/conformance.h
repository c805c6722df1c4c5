#pragma once

#include <functional>
#include <string>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::testing {

// A transport that the conformance suite (tests/comm/conformance_test.cc) runs on.
struct TransportUnderTest {
  using Body = std::function<void(Communicator&, Device&)>;

  std::string name;
  // Runs `body` on `world_size` ranks that are threads, each with a device, and joins them.
  // Rethrows the error of the lowest failing rank.
  std::function<void(int world_size, const Body& body)> run;
  int least_ranks = 1;
  int most_ranks = 1024;
  bool has_host_memory = true;          // Sharing::per_host
  bool rounds_to_inputs = false;        // sums of 16-bit inputs are rounded to 16 bits
  std::function<void()> enter = [] {};  // before each test
  std::function<void()> leave = [] {};  // after it
};

// The transports of the program that the suite is linked into.
std::vector<TransportUnderTest> transports_under_test();

}  // namespace zerorun::testing
