#include "tools/completion_script.h"

#include <string_view>

#include "core/check.h"

namespace zerorun {

namespace {

// The words up to the cursor are taken from the line, because bash also splits at '=' and ':'. bash
// replaces only the part after the last of these.
constexpr std::string_view kBash = R"(_zerorun() {
  local line=${COMP_LINE:0:COMP_POINT} cut candidate words
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  cut=${words[-1]%"${words[-1]##*[=:]}"}
  COMPREPLY=()
  while IFS=$'\t' read -r candidate _; do
    COMPREPLY+=("${candidate#"$cut"}")
  done < <("$1" completion --words "${words[@]:1}" 2>/dev/null)
}
complete -o bashdefault -o default -F _zerorun zerorun
)";

constexpr std::string_view kZsh = R"(#compdef zerorun
_zerorun() {
  local line
  local -a candidates shown
  for line in "${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] || continue
    candidates+=("${line%%$'\t'*}")
    shown+=("${line//$'\t'/  }")
  done
  if (( ${#candidates} )); then
    compadd -l -d shown -a candidates
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _zerorun ]]; then
  _zerorun "$@"
else
  compdef _zerorun zerorun
fi
)";

constexpr std::string_view kFish = R"(function __zerorun_candidates
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] completion --words $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c zerorun -f -a '(__zerorun_candidates)'
)";

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") return std::string(kZsh);
  ZR_CHECK(shell == "fish", "no script for the shell '{}'", shell);
  return std::string(kFish);
}

}  // namespace zerorun
