#include "launcher/hosts/this_host.h"

#include <algorithm>

#include "core/check.h"
#include "launcher/ranks/cuda_probe.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

std::vector<int> chosen_cpus(const std::string& core_list) {
  std::vector<int> allowed = allowed_cpus();
  if (core_list.empty()) return allowed;
  std::vector<int> wanted = parse_cpu_list(core_list);
  if (wanted.empty() || core_list.find_first_not_of("0123456789,-") != std::string::npos) {
    fail<ConfigError>("--bind_core_list '{}': expected numbers of CPUs, as in 0-3,8", core_list);
  }
  for (const int cpu : wanted) {
    if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end()) {
      fail<ConfigError>("--bind_core_list '{}': CPU {} is not one that this process may use ({})",
                        core_list, cpu, format_cpu_list(allowed));
    }
  }
  return wanted;
}

}  // namespace

ThisHost look_at_this_host(Accelerator accelerator, bool own_program,
                           const std::string& core_list) {
  ThisHost here;
  here.environment = inherited_environment();
  here.cores = group_by_core(chosen_cpus(core_list));
  HostResources& resources = here.resources;
  resources.name = host_name();
  const auto visible = find_variable(here.environment, "CUDA_VISIBLE_DEVICES");
  const int gpus = count_gpus();
  resources.gpus = visible_gpus(visible, gpus);
  if (gpus > 0 && resources.gpus.empty() && !hides_all_gpus()) {
    resources.why_no_gpu = fmt::format("CUDA_VISIBLE_DEVICES={} shows none of this host's {} GPU{}",
                                       visible.value_or(""), gpus, gpus == 1 ? "" : "s");
  }
  resources.cpus = count_cpus(here.cores);
  resources.numa_nodes = count_nodes(here.cores);
  resources.own_program = own_program;
  if (own_program && !resources.gpus.empty() && accelerator != Accelerator::cpu) {
    resources.cuda_problem = ask_for_cuda_problem(driver_patience());
  }
  resources.share_gpus = is_on(find_variable(here.environment, "ZERORUN_SHARE_GPUS").value_or(""));
  return here;
}

}  // namespace zerorun
