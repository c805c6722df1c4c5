#include "os/elf_symbols.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <vector>

namespace zerorun {

namespace {

// A larger table of symbols is that of a broken file.
constexpr uint64_t kMaxTable = uint64_t{1} << 30;

template <typename T>
std::vector<T> read_table(std::ifstream& file, uint64_t offset, uint64_t nbytes) {
  if (nbytes > kMaxTable) return {};
  std::vector<T> table(nbytes / sizeof(T));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(table.data()),
            static_cast<std::streamsize>(table.size() * sizeof(T)));
  if (!file) table.clear();
  return table;
}

}  // namespace

std::string elf_symbol_at(const std::string& path, uint64_t offset) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return {};
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr)) {
    return {};
  }
  const auto sections =
      read_table<Elf64_Shdr>(file, header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    for (const Elf64_Sym& symbol :
         read_table<Elf64_Sym>(file, section.sh_offset, section.sh_size)) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || offset < symbol.st_value ||
          offset >= symbol.st_value + symbol.st_size) {
        continue;
      }
      std::string name;
      const Elf64_Shdr& names = sections[section.sh_link];
      file.seekg(static_cast<std::streamoff>(names.sh_offset + symbol.st_name));
      std::getline(file, name, '\0');
      return name;
    }
  }
  return {};
}

}  // namespace zerorun
