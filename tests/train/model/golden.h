#pragma once

#include <nlohmann/json.hpp>

#include "testing/local_parameters.h"
#include "tests/paths.h"
#include "tests/train/model/reference.h"
#include "train/model/gpt_config.h"

namespace zerorun::train::testing {

// The file that make_golden.py writes; all tensors as doubles.
class Golden {
 public:
  Golden() {
    std::ifstream file(test_paths::tests() + "/train/data/golden.safetensors", std::ios::binary);
    uint64_t header_size = 0;
    file.read(reinterpret_cast<char*>(&header_size), sizeof(header_size));
    std::string header(header_size, ' ');
    file.read(header.data(), static_cast<std::streamsize>(header_size));
    const std::string data((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const nlohmann::json entries = nlohmann::json::parse(header);
    for (const auto& [name, entry] : entries.items()) {
      const size_t begin = entry.at("data_offsets").at(0);
      const size_t end = entry.at("data_offsets").at(1);
      const bool integers = entry.at("dtype") == "I64";
      std::vector<double>& values = tensors_[name];
      for (size_t at = begin; at < end; at += integers ? 8 : 4) {
        values.push_back(integers ? static_cast<double>(read<int64_t>(data, at))
                                  : read<float>(data, at));
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
  template <typename T>
  static T read(const std::string& data, size_t at) {
    T value;
    std::copy_n(data.data() + at, sizeof(T), reinterpret_cast<char*>(&value));
    return value;
  }

  std::map<std::string, std::vector<double>> tensors_;
};

}  // namespace zerorun::train::testing
