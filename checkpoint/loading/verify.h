#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zerorun {

// Reads and verifies every byte of the checkpoint in `directory` or, if it contains several, of
// each, and checks `latest`. Calls `report` with a line for each intact checkpoint as soon as it
// has been read, and then for `latest`. Throws CheckpointError if there is no checkpoint, and at
// the end if any is damaged, naming the damaged ones.
// `progress` is called as bytes are read, with the checkpoint, the bytes so far and the total.
using VerifyProgress =
    std::function<void(const std::string& folder, uint64_t nbytes, uint64_t total)>;
void verify_checkpoint(
    const std::string& directory, const std::function<void(const std::string& line)>& report,
    const VerifyProgress& progress = [](const std::string&, uint64_t, uint64_t) {});

}  // namespace zerorun
