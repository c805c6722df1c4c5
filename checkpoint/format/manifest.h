#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/dtype.h"
#include "zerorun/engine.h"

namespace zerorun {

// The content of checkpoint.json: which model a checkpoint holds, at which step, in which files.
// docs/checkpoint_format.md specifies its text.
struct Manifest {
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    DType dtype = DType::fp32;
    bool trainable = true;
    int group = 0;
    std::vector<int> states;  // ascending indices into the manifest's states; none when frozen
    std::string alias_of{};   // if not empty, only the name is set besides
    bool saved = true;        // false for frozen parameters that were left out

    int64_t numel() const;
  };
  struct ShardFile {
    std::string name;
    uint64_t nbytes = 0;
    uint64_t header_nbytes = 0;
    uint64_t header_hash = 0;
    std::string host{};  // that wrote it; only with use_node_local_storage
  };

  std::string zerorun_version;
  EngineProgress progress;
  std::vector<StateSpec> states;  // all kinds of states: masters and optimizer states
  std::vector<ParameterGroup> groups;
  std::vector<Parameter> parameters;
  std::string configuration;  // JSON text: the settings of the program that saved
  std::string client_state;
  std::vector<ShardFile> shards;     // one per rank of the job that saved
  std::optional<ShardFile> buffers;  // if there are any

  int64_t numel() const;  // of all parameters
};

inline constexpr const char* kFormatName = "zerorun checkpoint";
inline constexpr int kFormatVersion = 4;
inline constexpr uint64_t kMaxManifestNbytes = uint64_t{1} << 28;
inline constexpr uint64_t kMaxClientStateNbytes = uint64_t{1} << 26;  // JSON may double it

using StatesOf = std::function<std::span<const StateSpec>(ParameterId)>;

// The manifest of a model: its parameters and their states.
Manifest describe_model(std::span<const ParameterSpec> specs, DType param_dtype, DType master_dtype,
                        const StatesOf& states_of);
// The manifest of an engine, without files and client state.
Manifest describe_engine(EngineStates& engine);

// Throws ConfigError if a name is not UTF-8 or a hyperparameter is not finite, which JSON cannot
// represent, and if the text exceeds kMaxManifestNbytes.
std::string encode_manifest(const Manifest& manifest);
// Verifies the text's own hash first, then everything else. Throws CheckpointError that names
// `file`.
Manifest decode_manifest(std::string_view text, const std::string& file);

// Checks that a checkpoint fits the engine's model. Throws CheckpointError that lists all
// differences, with the nearest names for parameters that only one of them has. `checkpoint`: its
// name in the error. If not `strict`, either may have parameters that the other lacks.
void check_same_model(const Manifest& saved, const Manifest& engine, std::string_view checkpoint,
                      bool strict);

// Suggests a parameter for a name that the other side does not have: the same name with or without
// a wrapper's prefix, else the nearest. Empty if none is near.
std::string nearest_parameter(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace zerorun
