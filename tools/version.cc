#include "zerorun/version.h"

#include "tools/commands.h"

namespace zerorun {

std::string version_line() { return "zerorun " ZERORUN_VERSION " (commit " ZERORUN_COMMIT ")"; }

}  // namespace zerorun
