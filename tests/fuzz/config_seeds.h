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
  };
}

}  // namespace zerorun::testing
