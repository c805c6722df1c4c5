#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// The mangled name of the function at an offset from where a program or library is loaded, from its
// symbol table; also of functions that it does not export. Empty: it has none, or it is no ELF file
// of this machine.
std::string elf_symbol_at(const std::string& path, uint64_t offset);

}  // namespace zerorun
