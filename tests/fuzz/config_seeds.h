#pragma once

#include <string>
#include <vector>

namespace zerorun::testing {

// Configurations of all shapes, to be damaged.
inline std::vector<std::string> config_seeds() {
  return {
      R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "steps_per_print": Infinity,
"optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8}},
"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": true},
"bf16": {"enabled": true}, "gradient_clipping": 1.0})",
      R"({"fp16": {"enabled": "auto", "loss_scale": 0, "hysteresis": 2},
"zero_optimization": {"stage": 3, "offload_param": {"device": "none", "pin_memory": true},
"stage3_prefetch_bucket_size": "auto", "stage3_max_live_parameters": 1e9, "sub_group_size": 1e9,
"cpu_offload": false}, "gradient_accumulation_steps": "auto", "wall_clock_breakdown": false})",
      R"(// a comment
{ # another
"zerorun": {"comm_timeout": 30, "train": {"data": ["a.txt", "b/"], "seq_len": 128, "seed": 1,
"dtype": "bf16", "recompute": false, "sample": "\u00e4 \"quoted\" \ud83d\ude00",},},
/* and one more */ "amp": {"enabled": false, "opt_level": "O1"},})",
      R"({"zero_optimization": true, "scheduler": {}, "tensorboard": {"enabled": false},
"elasticity": {"micro_batch_sizes": [2, 4]}, "activation_checkpointing": {"profile": true},
"a": {"b": [[[{"c": null}]]]}, "d": -1.5e-300, "e": 18446744073709551615})",
      R"({"fp16": {"enabled": true, "initial_scale_power": 12, "consecutive_hysteresis": true},
"optimizer": {"type": "Muon", "params": {"muon_lr": 0.05, "momentum": 0.9, "betas": [0.8, 0.9]}},
"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 9,
"warmup_max_lr": "auto", "warmup_min_lr": [0, 1e-5], "warmup_type": "linear"}},
"communication_data_type": "fp16", "gradient_allreduce_op": "sum", "train_batch_size": 8})",
      R"({"bfloat16": {"enabled": true, "bf16_master_weights_and_grads": true,
"bf16_optimizer_states": true}, "optimizer": {"type": "SGD", "params": {"momentum": 0.9,
"nesterov": true}}, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4,
"cycle_max_lr": [1e-2, 1e-3], "cycle_second_step_size": null, "decay_step_size": 10}}})",
  };
}

}  // namespace zerorun::testing
