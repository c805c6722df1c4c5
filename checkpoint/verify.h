#pragma once

#include <functional>
#include <string>

namespace zerorun {

// Reads every byte of the checkpoint in `directory` or, if it holds several, of each, and checks
// `latest`. Reports a line for each that is intact, as soon as it has been read, and then for
// `latest`. Throws CheckpointError when there is none, and at the end, naming the damaged ones
// only.
void verify_checkpoint(const std::string& directory,
                       const std::function<void(const std::string& line)>& report);

}  // namespace zerorun
