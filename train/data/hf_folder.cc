#include "train/data/hf_folder.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/files/file.h"
#include "core/check.h"
#include "device/convert.h"
#include "os/whole_file.h"
#include "train/model/parameters.h"

namespace zerorun::train {

namespace {

constexpr std::string_view kPrefix = "transformer.";

std::string config_of(const std::string& folder) { return folder + "/config.json"; }

TensorView find_tensor(const SafetensorsReader& reader, const ParameterSpec& spec,
                       const std::string& folder) {
  const SafetensorsReader::Tensor* tensor = reader.find(spec.name);
  if (tensor == nullptr) tensor = reader.find(spec.name.substr(kPrefix.size()));
  if (tensor == nullptr) fail<CheckpointError>("{} has no tensor {}", folder, spec.name);
  if (tensor->shape != spec.shape) {
    fail<CheckpointError>("{}: {} has shape [{}], the model needs [{}]", folder, tensor->name,
                          fmt::join(tensor->shape, ", "), fmt::join(spec.shape, ", "));
  }
  const DType dtype = tensor->data.dtype;
  if (dtype != DType::fp32 && dtype != DType::bf16 && dtype != DType::fp16) {
    fail<CheckpointError>("{}: {} is {}: expected fp32, bf16 or fp16", folder, tensor->name,
                          name_of(dtype));
  }
  return tensor->data;
}

}  // namespace

GptConfig read_hf_config(const std::string& folder) {
  if (!path_exists(config_of(folder))) {
    fail<ConfigError>("{} does not exist: expected the folder of a Hugging Face GPT-2",
                      config_of(folder));
  }
  return gpt_config(config_of(folder));
}

void write_hf_config(const std::string& folder, const GptConfig& config) {
  create_folders(folder);
  write_whole_file(config_of(folder), to_json(config));
}

void write_hf_weights(const std::string& folder, Engine& engine, Communicator& comm) {
  std::vector<ExportTensor> tensors;
  for (const ParameterSpec& spec : engine.parameters()) {
    tensors.push_back({spec.name, spec.name, spec.shape});
  }
  // transformers rejects files whose metadata does not name the framework.
  export_safetensors(engine.states(), comm, folder + "/model.safetensors", tensors,
                     R"({"format": "pt"})");
}

HfWeights::HfWeights(const std::string& folder, const GptConfig& config) : reader_(folder) {
  for (const ParameterSpec& spec : parameter_specs(config)) {
    tensors_.push_back(find_tensor(reader_, spec, folder));
  }
}

void HfWeights::fill(ParameterId id, int64_t begin, std::span<float> out) const {
  const TensorView from =
      tensors_.at(static_cast<size_t>(id)).slice(begin, static_cast<int64_t>(out.size()));
  with_floating(from.dtype, [&]<typename T>(T*) {
    const auto* const values = from.as<T>();
    std::transform(values, values + out.size(), out.begin(),
                   [](auto value) { return widen(value); });
  });
  reader_.forget(from);
}

}  // namespace zerorun::train
