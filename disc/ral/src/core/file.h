// The artifact file: mapped, its header checked, its sections found (docs/artifact.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/sha256.h"
#include "core/status.h"

namespace ral {

constexpr size_t kWeightsChunk = 16 << 20;  // bytes: the weights' hash is the hash of the hashes of such chunks

struct Section {
  std::string name;
  std::span<const uint8_t> bytes;
  Digest digest;
};

class ArtifactFile {
 public:
  ArtifactFile() = default;
  ArtifactFile(const ArtifactFile&) = delete;
  ArtifactFile& operator=(const ArtifactFile&) = delete;
  ~ArtifactFile();

  // Maps `path` and checks everything but the hash of the weights: header, padding, and the hash of each other section.
  Status open(const char* path);

  // From now on `open` accepts only a file whose header has this hash.
  void expect(const Digest& digest) { expected_ = digest; }

  // Maps `descriptor`, a file of the same bytes, in the place of the one that was opened: at the same address, while others read.
  Status remap(int descriptor);

  // Lets code write to the mapped bytes, of which this process then has copies: custom functions may write where they should read alone.
  void let_write() noexcept;

  const Section* find(std::string_view name) const;
  // The section with the signature for the code of an ISA, which `open` has found: format 1 has one for all.
  const Section& signature_of(const std::string& isa) const;
  const std::vector<Section>& sections() const { return sections_; }
  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  Status map(const char* path);
  Status read_header();
  Status check_sections() const;

  std::span<const uint8_t> bytes_;
  int protection_ = 1;  // of the mapping: PROT_READ, and PROT_WRITE where code may write
  uint32_t version_ = 0;
  std::optional<Digest> expected_;
  std::vector<Section> sections_;
};

}  // namespace ral
