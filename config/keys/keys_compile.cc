#include <array>

#include "config/keys/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kCompile = "/compile/deepcompile";

constexpr auto kCompileKeys = std::to_array<KeySpec>({
    block("/compile", "Settings of torch.compile."),
    not_yet(kCompile, KeyType::boolean, "false",
            "Compiles ZeRO's communication into the model's graph."),
    gated(kCompile, "/compile/autoep_non_moe", KeyType::boolean, "false",
          "Compiles the layers around expert layers."),
    gated(kCompile, "/compile/free_activation", KeyType::boolean, "false",
          "Frees activations early."),
    gated(kCompile, "/compile/free_activation_threshold", KeyType::integer, "10485760",
          "Size in bytes from which activations are freed early."),
    gated(kCompile, "/compile/offload_activation", KeyType::boolean, "false",
          "Keeps activations in host memory."),
    gated(kCompile, "/compile/offload_activation_pin_memory", KeyType::boolean, "true",
          "Uses page-locked host memory for offloaded activations."),
    gated(kCompile, "/compile/offload_opt_states", KeyType::boolean, "false",
          "Keeps optimizer states in host memory."),
    gated(kCompile, "/compile/double_buffer", KeyType::boolean, "true",
          "Uses two communication buffers."),
    gated(kCompile, "/compile/symmetric_memory", KeyType::boolean, "false",
          "Uses symmetric memory for gathers."),
    gated(kCompile, "/compile/debug_log", KeyType::boolean, "false", "Writes a debug log."),
    gated(kCompile, "/compile/offload_parameters", KeyType::boolean, "false",
          "Keeps parameters in host memory."),
    gated(kCompile, "/compile/sync_before_reduce", KeyType::boolean, "false",
          "Synchronizes before each reduction."),
    gated(kCompile, "/compile/sync_after_reduce", KeyType::boolean, "false",
          "Synchronizes after each reduction."),
    gated(kCompile, "/compile/sync_before_allgather", KeyType::boolean, "false",
          "Synchronizes before each gather."),
    gated(kCompile, "/compile/sync_after_allgather", KeyType::boolean, "false",
          "Synchronizes after each gather."),
    gated(kCompile, "/compile/keep_int_input_tensors", KeyType::boolean, "true",
          "Keeps integer input tensors."),
    gated(kCompile, "/compile/keep_all_input_tensors", KeyType::boolean, "false",
          "Keeps all input tensors."),
    gated(kCompile, "/compile/passes", KeyType::strings, "null",
          "Names of the compiler passes to run."),
});

}  // namespace

std::span<const KeySpec> compile_keys() { return kCompileKeys; }

}  // namespace zerorun
