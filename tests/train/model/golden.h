#pragma once

#include "testing/local_parameters.h"
#include "tests/paths.h"
#include "tests/train/model/reference.h"
#include "train/model/gpt_config.h"
#include "zerorun/checkpoint.h"

namespace zerorun::train::testing {

// The file that make_golden.py writes; all tensors as doubles.
class Golden {
 public:
  Golden() {
    const SafetensorsReader file(test_paths::tests() + "/train/data/golden.safetensors");
    for (const SafetensorsReader::Tensor& tensor : file.tensors()) {
      std::vector<double>& values = tensors_[tensor.name];
      if (tensor.data.dtype == DType::int64) {
        std::ranges::copy(tensor.data.span<int64_t>(), std::back_inserter(values));
      } else {
        std::ranges::copy(tensor.data.span<float>(), std::back_inserter(values));
      }
    }
  }

  static GptConfig config() {
    GptConfig config;
    config.vocabulary = 37;
    config.positions = 13;
    config.width = 24;
    config.layers = 2;
    config.heads = 3;
    config.inner = 96;
    return config;
  }
  static constexpr int64_t kBatch = 2;
  static constexpr int64_t kSeqLen = 11;

  const std::vector<double>& tensor(const std::string& name) const { return tensors_.at(name); }
  std::vector<int32_t> tokens(const std::string& name) const {
    return {tensor(name).begin(), tensor(name).end()};
  }
  void load_into(LocalParameters& parameters) const {
    for (const ParameterSpec& spec : parameters.specs()) {
      const std::vector<double>& values = tensor("value." + spec.name);
      parameters.set_parameter(parameters.parameter_id(spec.name),
                               std::vector<float>(values.begin(), values.end()));
    }
  }

 private:
  std::map<std::string, std::vector<double>> tensors_;
};

}  // namespace zerorun::train::testing
