#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/checks/check.h"
#include "zerorun/config.h"

namespace zerorun {

// The section elasticity: a batch size that many numbers of ranks divide, so that a job may go on
// with more or fewer of them. The rules are DeepSpeed's (0.19.7, elasticity/elasticity.py), which
// 0.19.8 dropped.
struct Elasticity {
  bool enabled = false;
  int64_t max_train_batch_size = 2000;
  std::vector<int64_t> micro_batch_sizes = {2, 4, 6};
  int64_t min_gpus = 1;
  int64_t max_gpus = 10000;
  int64_t num_gpus_per_node = 1;
  int64_t model_parallel_size = 1;
  bool prefer_larger_batch = true;
  double version = 0.2;  // of the rules
};

// The result of the rules.
struct ElasticBatch {
  int64_t train_batch_size = 0;
  std::vector<int64_t> world_sizes;  // data-parallel ranks that have this batch, ascending
  int64_t micro_batch_size = 0;      // the largest for the world size asked for; 0: none
};

// The section of a file's keys, or of what parsing made of them.
Elasticity elasticity_of(const GivenKeys& keys);
Elasticity elasticity_of(const ParsedConfig& parsed);

// Notes the problems of a section that is enabled, alone and beside the batch sizes.
void check_elasticity(const GivenKeys& keys, ConfigProblems& problems);

// True if the section counts as versions 0.2 of the rules do: hosts, of `num_gpus_per_node` ranks.
bool counts_hosts(const Elasticity& elasticity);

// The batch, for any world size where it is 0: version 0.2 makes batches for others than the
// listed ones, which have to be asked for. Throws ConfigError where no batch is possible.
ElasticBatch elastic_batch(const Elasticity& elasticity, int64_t world_size);

// Throws ConfigError where DEEPSPEED_ELASTICITY_CONFIG, by which a resource scheduler counts, is
// another section.
void check_scheduler(const Elasticity& elasticity);

// The batch sizes on that many ranks: those that are given or follow, or elasticity's. Throws
// ConfigError where they do not suit it, or as check_scheduler does.
BatchConfig batch_for(const ParsedConfig& parsed, int world_size);

// One line: the batch and the numbers of ranks that it suits.
std::string describe_elasticity(const ParsedConfig& parsed);

}  // namespace zerorun
