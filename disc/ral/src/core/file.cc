#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ral {

namespace {

constexpr uint8_t kMagic[8] = {'D', 'I', 'S', 'C', '\r', '\n', 0x1a, '\n'};
constexpr uint32_t kFormatVersion = 2, kOldestVersion = 1;  // the newest and the oldest that is read
constexpr uint32_t kMaxSections = 64;
constexpr size_t kMaxTextSize = 32 << 20, kMaxCodeSize = 1 << 30;  // bytes: both are copied; disc writes none as large
constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;

struct Header {
  uint8_t magic[8];
  uint32_t version;
  uint32_t section_count;
  uint64_t file_size;
  uint64_t reserved;  // 0
};

struct Entry {
  char name[64];  // padded with zeros
  uint64_t offset;
  uint64_t size;
  uint8_t digest[32];
};

static_assert(sizeof(Header) == 32 && sizeof(Entry) == 112);

Status damaged(const std::string& what) { return error(RAL_ERROR_ARTIFACT, what); }

// Where a name ends, all 64 bytes are used up or nothing but zeros follows: readers that stop at the first zero and those that do not agree.
bool is_name(const char (&name)[64], size_t length) {
  return length > 0 && std::all_of(name + length, name + sizeof name, [](char byte) { return byte == 0; });
}

bool is_zero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

bool is_text(std::string_view name) { return name == "manifest" || name == "signature" || name.starts_with("signature/"); }

}  // namespace

ArtifactFile::~ArtifactFile() {
  if (bytes_.data()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

Status ArtifactFile::map(const char* path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const FileDescriptor fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) return damaged(std::string("cannot be opened: ") + strerror(errno));
  if (!S_ISREG(info.st_mode)) return damaged("not a regular file");
  const size_t size = static_cast<size_t>(info.st_size);
  if (size < sizeof(Header)) return damaged("header: the file has " + std::to_string(size) + " bytes, too few for an artifact");
  void* mapped = mmap(nullptr, size, protection_, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) return error(RAL_ERROR_MEMORY, std::string("cannot be mapped: ") + strerror(errno));
  bytes_ = {static_cast<const uint8_t*>(mapped), size};
  return {};
}

Status ArtifactFile::read_header() {
  Header header;
  std::memcpy(&header, bytes_.data(), sizeof header);
  if (std::memcmp(header.magic, "version ", sizeof kMagic) == 0) {
    return damaged("this is a pointer of Git LFS, not the file that it stands for: fetch that with git lfs pull");
  }
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return damaged("header: not a disc artifact");
  if (header.version > kFormatVersion) {
    return damaged("header: format version " + std::to_string(header.version) + " is newer than this runtime reads (" +
                   std::to_string(kFormatVersion) + "); rebuild the artifact or upgrade disc");
  }
  if (header.version < kOldestVersion) {
    return damaged("header: format version " + std::to_string(header.version) + " is no longer read; rebuild the artifact with this disc");
  }
  version_ = header.version;
  if (header.file_size != bytes_.size()) {
    return damaged("header: the file should have " + std::to_string(header.file_size) + " bytes and has " + std::to_string(bytes_.size()));
  }
  const size_t table_end = sizeof(Header) + header.section_count * sizeof(Entry);
  if (header.reserved != 0 || header.section_count > kMaxSections || table_end + sizeof(Digest) > bytes_.size())
    return damaged("header: damaged");
  const Digest digest = sha256(bytes_.first(table_end));
  if (std::memcmp(digest.data(), bytes_.data() + table_end, digest.size()) != 0)
    return damaged("header: hash differs, the file is damaged");
  if (expected_ && digest != *expected_) return damaged("header: not the file that was expected: its header has another hash");

  size_t end = table_end + sizeof(Digest);
  for (uint32_t i = 0; i < header.section_count; ++i) {
    Entry entry;
    std::memcpy(&entry, bytes_.data() + sizeof(Header) + i * sizeof(Entry), sizeof entry);
    const std::string name(entry.name, strnlen(entry.name, sizeof entry.name));
    if (!is_name(entry.name, name.size())) return damaged("header: section " + std::to_string(i) + " has a malformed name");
    const size_t alignment = name == "weights" ? kPage : kAlignment;
    const size_t offset = (end + alignment - 1) / alignment * alignment;
    if (entry.offset != offset || offset > bytes_.size() || entry.size > bytes_.size() - offset)
      return damaged("section '" + name + "' has a wrong place");
    if (!is_zero(bytes_.subspan(end, offset - end))) return damaged("padding before section '" + name + "' is damaged");
    if (find(name)) return damaged("section '" + name + "' occurs twice");
    const size_t most = is_text(name) ? kMaxTextSize : name.starts_with("code/") ? kMaxCodeSize : SIZE_MAX;
    if (entry.size > most)
      return damaged("section '" + name + "' is larger than any that disc writes (" + std::to_string(entry.size) + " bytes)");
    Section section{name, bytes_.subspan(offset, entry.size), {}};
    std::memcpy(section.digest.data(), entry.digest, sizeof entry.digest);
    sections_.push_back(std::move(section));
    end = offset + entry.size;
  }
  return end == bytes_.size() ? Status{} : damaged("header: bytes after the last section");
}

Status ArtifactFile::check_sections() const {
  for (const Section& section : sections_) {
    if (section.name != "weights" && sha256(section.bytes) != section.digest)
      return damaged("section '" + section.name + "': hash differs, the file is damaged");
  }
  std::vector<std::string> required = {"manifest"};
  if (version_ == kOldestVersion) required.push_back("signature");
  for (const Section& section : sections_) {
    if (version_ > kOldestVersion && section.name.starts_with("code/")) required.push_back("signature/" + section.name.substr(5));
  }
  required.push_back("weights");
  for (const std::string& name : required) {
    if (!find(name)) return damaged("section '" + name + "' is missing");
  }
  return {};
}

Status ArtifactFile::open(const char* path) {
  Status status = map(path);
  if (status.ok()) status = read_header();
  if (status.ok()) status = check_sections();
  if (!status.ok()) status.message = "'" + std::string(path) + "': " + status.message;
  return status;
}

Status ArtifactFile::remap(int descriptor) {
  struct stat info;
  if (fstat(descriptor, &info) != 0) return error(RAL_ERROR_INTERNAL, std::string("ral_remap_file: ") + strerror(errno));
  if (bytes_.empty() || static_cast<size_t>(info.st_size) != bytes_.size())
    return error(RAL_ERROR_INTERNAL, "ral_remap_file: not a copy of the file that was loaded");
  // The kernel exchanges the pages in one step: a thread that touches them in the meantime waits.
  auto* place = const_cast<uint8_t*>(bytes_.data());
  if (mmap(place, bytes_.size(), protection_, MAP_PRIVATE | MAP_FIXED, descriptor, 0) == MAP_FAILED)
    return error(RAL_ERROR_MEMORY, std::string("cannot be mapped again: ") + strerror(errno));
  return {};
}

void ArtifactFile::let_write() noexcept {
  static_assert(PROT_READ == 1);
  auto* place = const_cast<uint8_t*>(bytes_.data());
  if (place && mprotect(place, bytes_.size(), PROT_READ | PROT_WRITE) == 0) protection_ = PROT_READ | PROT_WRITE;
}

const Section& ArtifactFile::signature_of(const std::string& isa) const {
  return *find(version_ == kOldestVersion ? "signature" : "signature/" + isa);
}

const Section* ArtifactFile::find(std::string_view name) const {
  for (const Section& section : sections_) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

}  // namespace ral
