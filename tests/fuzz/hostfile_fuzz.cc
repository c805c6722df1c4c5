#include "comm/rendezvous/slurm.h"
#include "core/check.h"
#include "launcher/environment.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/host_filter.h"
#include "tests/fuzz/driver.h"

namespace zerorun::testing {

// Any bytes either are a hostfile, whose hosts can then be named on a command line, or give a
// ConfigError; so for filters, Slurm's lists and files of variables.
void fuzz(std::string_view input) {
  const std::string text(input);
  may_throw<ConfigError>([&] {
    for (const HostSlots& host : parse_hostfile(text, "hosts")) {
      ZR_CHECK(is_host_name(host.host) && host.slots.size() <= kMaxRanksPerHost, "got host '{}'",
               host.host);
    }
  });
  may_throw<ConfigError>([&] {
    for (const HostFilter& filter : parse_host_filter("--include", text)) {
      ZR_CHECK(is_host_name(filter.host), "got host '{}'", filter.host);
    }
  });
  may_throw<ConfigError>([&] { expand_host_list(text); });
  may_throw<ConfigError>([&] { expand_task_counts(text); });
  may_throw<ConfigError>([&] { parse_environment_file(text, "variables"); });
}

std::vector<std::string> fuzz_seeds() {
  return {"# hosts\nworker-1 slots=4 max_slots=8\n\nworker-2:2 # two\n[fe80::1]:1\nworker-3\n",
          "worker-1@worker-2:0,2@localhost:1", "n[01-03,5]-ib,login,r[1-2]c[3,4]", "4(x2),3",
          "export A=\"x y\"\nB=1\n# c\nPATH=/bin:/usr/bin\n"};
}

}  // namespace zerorun::testing
