#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// Returns the mangled name of the function at `offset` from the load address of a program or
// library, from its symbol table, including functions that are not exported. Returns "" if there is
// no such symbol or `path` is not an ELF file for this machine.
std::string elf_symbol_at(const std::string& path, uint64_t offset);

}  // namespace zerorun
