#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/files/layout.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "checkpoint/loading/record_runs.h"
#include "core/check.h"
#include "zerorun/device.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

using Record = CheckpointReader::Record;

uint64_t nbytes_of(const Manifest& manifest) {
  uint64_t nbytes = 0;
  for (const Manifest::ShardFile& shard : manifest.shards) nbytes += shard.nbytes;
  return nbytes + (manifest.buffers ? manifest.buffers->nbytes : 0);
}

void verify_records(const CheckpointReader& checkpoint,
                    const std::function<void(uint64_t nbytes)>& progress) {
  std::vector<const Record*> records;
  for (const Record& record : checkpoint.records()) records.push_back(&record);
  sort_by_place(records);
  Workers workers(kReadingThreads);
  const std::shared_ptr<Device> host = make_cpu_device();
  RunReader(checkpoint, *host, workers, ReadPath::direct)
      .read(runs_of(records), {.done = progress});
  for (size_t i = 0; i < checkpoint.buffers().size(); ++i) {
    std::vector<std::byte> bytes(checkpoint.buffers()[i].nbytes);
    checkpoint.read_buffer(i, bytes);
  }
}

std::string verify_folder(const fs::path& folder, const VerifyProgress& progress) {
  const CheckpointReader checkpoint(folder);
  const Manifest& manifest = checkpoint.manifest();
  const uint64_t nbytes = nbytes_of(manifest);
  verify_records(checkpoint, [&](uint64_t read) { progress(folder.string(), read, nbytes); });
  return fmt::format(
      "{}: ok: step {}, {} parameters of {} elements, {} bytes in {} files, saved by zerorun {}",
      folder.string(), manifest.progress.step_count, manifest.parameters.size(), manifest.numel(),
      nbytes, manifest.shards.size() + (manifest.buffers ? 1 : 0), manifest.zerorun_version);
}

}  // namespace

void verify_checkpoint(const std::string& directory,
                       const std::function<void(const std::string& line)>& report,
                       const VerifyProgress& progress) {
  const fs::path root(directory);
  const std::vector<std::string> tags = list_tags(root);
  if (tags.empty()) return report(verify_folder(find_checkpoint(root, ""), progress));
  std::vector<std::string> problems;
  const auto check = [&](const auto& step) {
    try {
      report(step());
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  };
  for (const std::string& tag : tags) check([&] { return verify_folder(root / tag, progress); });
  check([&] { return fmt::format("latest: {}", find_checkpoint(root, "").filename().string()); });
  if (!problems.empty()) fail<CheckpointError>("{}", fmt::join(problems, "\n"));
}

}  // namespace zerorun
