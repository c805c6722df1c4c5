#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zerorun {

// Reads every byte of the checkpoint in `directory` or, if it holds several, of each, and checks
// `latest`. Reports a line for each that is intact, as soon as it has been read, and then for
// `latest`. Throws CheckpointError when there is none, and at the end, naming the damaged ones
// only.
// `progress` learns of bytes as they are read: of which checkpoint, how many, and of how many.
using VerifyProgress =
    std::function<void(const std::string& folder, uint64_t nbytes, uint64_t total)>;
void verify_checkpoint(
    const std::string& directory, const std::function<void(const std::string& line)>& report,
    const VerifyProgress& progress = [](const std::string&, uint64_t, uint64_t) {});

}  // namespace zerorun
