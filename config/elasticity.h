#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/checks/check.h"
#include "zerorun/config.h"

namespace zerorun {

// The section elasticity: computes a batch size that is divisible by many numbers of ranks, so that
// a job may continue with more or fewer ranks. The rules are those of DeepSpeed 0.19.7
// (elasticity/elasticity.py); 0.19.8 removed them.
struct Elasticity {
  bool enabled = false;
  int64_t max_train_batch_size = 2000;
  std::vector<int64_t> micro_batch_sizes = {2, 4, 6};
  int64_t min_gpus = 1;
  int64_t max_gpus = 10000;
  int64_t num_gpus_per_node = 1;
  int64_t model_parallel_size = 1;
  bool prefer_larger_batch = true;
  double version = 0.2;  // version of the rules
};

// The batch size that the rules of elasticity give.
struct ElasticBatch {
  int64_t train_batch_size = 0;
  // numbers of data-parallel ranks with this batch size, ascending
  std::vector<int64_t> world_sizes;
  // the largest micro-batch size for the requested world size; 0: none
  int64_t micro_batch_size = 0;
};

// Reads the section from the keys of a file or from a parsed configuration.
Elasticity elasticity_of(const GivenKeys& keys);
Elasticity elasticity_of(const ParsedConfig& parsed);

// Reports problems of an enabled section, also in combination with the batch sizes.
void check_elasticity(const GivenKeys& keys, ConfigProblems& problems);

// True if the rules (version 0.2) count whole hosts with `num_gpus_per_node` ranks each.
bool counts_hosts(const Elasticity& elasticity);

// Computes the batch size. If `world_size` is 0, the result is for the listed world sizes. For
// other world sizes, which version 0.2 supports, it has to be given. Throws ConfigError if no batch
// size is possible.
ElasticBatch elastic_batch(const Elasticity& elasticity, int64_t world_size);

// Throws ConfigError if DEEPSPEED_ELASTICITY_CONFIG, which a resource scheduler uses, differs from
// the section.
void check_scheduler(const Elasticity& elasticity);

// Returns the batch sizes for `world_size` ranks: those of the batch keys, or those of elasticity.
// Throws ConfigError if they do not match this number of ranks, or as check_scheduler does.
BatchConfig batch_for(const ParsedConfig& parsed, int world_size);

// Returns a line with the batch size and the numbers of ranks that divide it.
std::string describe_elasticity(const ParsedConfig& parsed);

}  // namespace zerorun
