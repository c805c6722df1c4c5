#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/safetensors_format.h"
#include "core/check.h"
#include "tests/fuzz/driver.h"
#include "zerorun/error.h"

namespace {

using namespace zerorun;  // NOLINT(google-build-using-namespace)

void decode(std::string_view bytes) {
  try {
    const SafetensorsHeader header =
        decode_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size(), "file");
    uint64_t end = header.nbytes;
    for (const SafetensorsHeader::Tensor& tensor : header.tensors) {
      ZR_CHECK(tensor.begin == end && tensor.end >= end, "{}", tensor.name);
      end = tensor.end;
      uint64_t numel = 1;
      for (const int64_t dimension : tensor.shape) numel *= static_cast<uint64_t>(dimension);
      ZR_CHECK(!tensor.dtype || numel * size_of(*tensor.dtype) == tensor.end - tensor.begin, "{}",
               tensor.name);
    }
    ZR_CHECK(end == bytes.size(), "{} of {}", end, bytes.size());
  } catch (const CheckpointError&) {
    return;
  }
}

// The JSON up to the first zero byte as the header of a file, the rest as its data.
std::string with_length(std::string_view input) {
  const std::string_view json = input.substr(0, input.find('\0'));
  const uint64_t length = json.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file.append(input);
}

}  // namespace

// Any bytes either are a safetensors file whose tensors fill it, or give a CheckpointError.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  decode(input);
  decode(with_length(input));
  return 0;
}

std::vector<std::string> zerorun::testing::fuzz_seeds() {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[0,9],"data_offsets":[24,24]},)"
      R"("c":{"dtype":"I32","shape":[1],"data_offsets":[24,28]},)"
      R"("d":{"dtype":"U8","shape":[],"data_offsets":[28,29]}})";
  const std::string input = json + std::string(29, '\0');
  return {input, with_length(input), "{}"};
}
