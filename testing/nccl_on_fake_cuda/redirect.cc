// Lets a loaded libnccl run on this fake of CUDA.
//
// NCCL has the CUDA runtime linked in, as local functions, and that runtime accepts NVIDIA's own
// driver only. So it is the runtime that is replaced: every one of its functions in the loaded
// library gets a jump to the fake's as its first instruction, or to one that says which function is
// missing. NCCL's own code stays as it is.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "testing/nccl_on_fake_cuda/fake.h"
#include "testing/nccl_on_fake_cuda/fake_cuda_for.h"

using namespace zerorun::fake_cuda;

namespace {

constexpr size_t kJump = 12;     // mov rax, target; jmp rax
constexpr size_t kRefusal = 22;  // mov rdi, name; mov rax, refuse; jmp rax

cudaError_t refuse(const char* name) {
  std::fprintf(stderr, "the fake CUDA has no %s\n", name);
  return cudaErrorNotSupported;
}

unsigned char* put(unsigned char* at, const char (&opcode)[3], const void* value) {
  std::memcpy(at, opcode, 2);
  std::memcpy(at + 2, &value, sizeof value);
  return at + 2 + sizeof value;
}

void put_jump(unsigned char* at, const void* target) {
  std::memcpy(put(at, "\x48\xb8", target), "\xff\xe0", 2);
}

// Functions of the runtime that callers know, by name: not __cudaRegister..., which precede main.
bool is_runtime(const char* name, const Elf64_Sym& symbol) {
  return ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_size >= kJump &&
         std::strncmp(name, "cuda", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z';
}

// A file as it lies on disk; symbols of local functions are not loaded.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status = {};
    if (file < 0 || fstat(file, &status) != 0) return;
    size_ = static_cast<size_t>(status.st_size);
    void* const data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (data != MAP_FAILED) data_ = static_cast<const char*>(data);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(data_ + offset);
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// Writes the first instructions of a function of the loaded library.
void redirect(uintptr_t place, const void* target) {
  const uintptr_t page = place & ~uintptr_t{4095};
  void* const pages = reinterpret_cast<void*>(page);
  mprotect(pages, place + kJump - page, PROT_READ | PROT_WRITE | PROT_EXEC);
  put_jump(reinterpret_cast<unsigned char*>(place), target);
  mprotect(pages, place + kJump - page, PROT_READ | PROT_EXEC);
}

// The functions of this fake, and for others code that calls `refuse` with their name.
class Targets {
 public:
  explicit Targets(size_t most)
      : next_(static_cast<unsigned char*>(mmap(nullptr, most * kRefusal,
                                               PROT_READ | PROT_WRITE | PROT_EXEC,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}

  const void* of(const char* name) {
    if (const void* const ours = function_of(name)) return ours;
    unsigned char* const code = std::exchange(next_, next_ + kRefusal);
    put_jump(put(code, "\x48\xbf", strdup(name)), reinterpret_cast<const void*>(&refuse));
    return code;
  }

 private:
  unsigned char* next_;  // stays until the process ends, as the library does
};

}  // namespace

namespace zerorun::fake_cuda {

void* function_of(const std::string& name) {
  static void* const self = [] {
    Dl_info own = {};
    dladdr(reinterpret_cast<void*>(&function_of), &own);
    return dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  for (const char* version : {"", "_v2", "_v3", "_v4"}) {
    if (void* const found = dlsym(self, (name + version).c_str())) return found;
  }
  return nullptr;
}

}  // namespace zerorun::fake_cuda

int fake_cuda_for(void* library, int gpus) {
  set_device_count(gpus);
  link_map* loaded = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &loaded) != 0) return 0;
  const MappedFile file(loaded->l_name);
  if (!file) return 0;
  const auto* const header = file.at<Elf64_Ehdr>(0);
  const auto* const sections = file.at<Elf64_Shdr>(header->e_shoff);
  int replaced = 0;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* const symbols = file.at<Elf64_Sym>(sections[i].sh_offset);
    const char* const names = file.at<char>(sections[sections[i].sh_link].sh_offset);
    const size_t count = sections[i].sh_size / sizeof(Elf64_Sym);
    Targets targets(count);
    for (size_t k = 0; k < count; ++k) {
      const char* const name = names + symbols[k].st_name;
      if (!is_runtime(name, symbols[k])) continue;
      redirect(loaded->l_addr + symbols[k].st_value, targets.of(name));
      ++replaced;
    }
  }
  return replaced;
}
