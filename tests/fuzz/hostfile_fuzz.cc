#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/rendezvous/slurm.h"
#include "core/check.h"
#include "launcher/environment.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/host_filter.h"
#include "tests/fuzz/driver.h"
#include "zerorun/error.h"

namespace {

using namespace zerorun;  // NOLINT(google-build-using-namespace)

template <typename Parse>
void try_parse(Parse parse) {
  try {
    parse();
  } catch (const ConfigError&) {
    return;  // the only kind of error that foreign text may give
  }
}

}  // namespace

// Any bytes either are a hostfile, whose hosts can then be named on a command line, or give a
// ConfigError; so for filters, Slurm's lists and files of variables.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try_parse([&] {
    for (const HostSlots& host : parse_hostfile(text, "hosts")) {
      ZR_CHECK(is_host_name(host.host) && host.slots.size() <= kMaxRanksPerHost, "got host '{}'",
               host.host);
    }
  });
  try_parse([&] {
    for (const HostFilter& filter : parse_host_filter("--include", text)) {
      ZR_CHECK(is_host_name(filter.host), "got host '{}'", filter.host);
    }
  });
  try_parse([&] { expand_host_list(text); });
  try_parse([&] { expand_task_counts(text); });
  try_parse([&] { parse_environment_file(text, "variables"); });
  return 0;
}

std::vector<std::string> zerorun::testing::fuzz_seeds() {
  return {"# hosts\nworker-1 slots=4 max_slots=8\n\nworker-2:2 # two\n[fe80::1]:1\nworker-3\n",
          "worker-1@worker-2:0,2@localhost:1", "n[01-03,5]-ib,login,r[1-2]c[3,4]", "4(x2),3",
          "export A=\"x y\"\nB=1\n# c\nPATH=/bin:/usr/bin\n"};
}
