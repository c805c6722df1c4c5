#include <array>

#include "config/keys/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kCompile = "/compile/deepcompile";

constexpr auto kCompileKeys = std::to_array<KeySpec>({
    block("/compile", "torch.compile."),
    not_yet(kCompile, KeyType::boolean, "false", "Compiles the model together with ZeRO."),
    gated(kCompile, "/compile/autoep_non_moe", KeyType::boolean, "false",
          "Compiles what surrounds expert layers."),
    gated(kCompile, "/compile/free_activation", KeyType::boolean, "false",
          "Frees activations early."),
    gated(kCompile, "/compile/free_activation_threshold", KeyType::integer, "10485760",
          "Bytes from which on."),
    gated(kCompile, "/compile/offload_activation", KeyType::boolean, "false",
          "Keeps activations in host memory."),
    gated(kCompile, "/compile/offload_activation_pin_memory", KeyType::boolean, "true",
          "Page-locked host memory for them."),
    gated(kCompile, "/compile/offload_opt_states", KeyType::boolean, "false",
          "Optimizer states in host memory."),
    gated(kCompile, "/compile/double_buffer", KeyType::boolean, "true",
          "Two communication buffers."),
    gated(kCompile, "/compile/symmetric_memory", KeyType::boolean, "false",
          "Symmetric memory for gathers."),
    gated(kCompile, "/compile/debug_log", KeyType::boolean, "false", "Debug log."),
    gated(kCompile, "/compile/offload_parameters", KeyType::boolean, "false",
          "Parameters in host memory."),
    gated(kCompile, "/compile/sync_before_reduce", KeyType::boolean, "false",
          "Synchronizes before a reduction."),
    gated(kCompile, "/compile/sync_after_reduce", KeyType::boolean, "false",
          "Synchronizes after a reduction."),
    gated(kCompile, "/compile/sync_before_allgather", KeyType::boolean, "false",
          "Synchronizes before a gather."),
    gated(kCompile, "/compile/sync_after_allgather", KeyType::boolean, "false",
          "Synchronizes after a gather."),
    gated(kCompile, "/compile/keep_int_input_tensors", KeyType::boolean, "true",
          "Keeps integer inputs."),
    gated(kCompile, "/compile/keep_all_input_tensors", KeyType::boolean, "false",
          "Keeps all inputs."),
    gated(kCompile, "/compile/passes", KeyType::strings, "null", "Compiler passes."),
});

}  // namespace

std::span<const KeySpec> compile_keys() { return kCompileKeys; }

}  // namespace zerorun
