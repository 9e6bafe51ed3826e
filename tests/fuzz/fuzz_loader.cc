// Fuzzes what the runtime reads of an artifact before any code is loaded: header, section table, hashes, signature. Two ways to build it:
//
//   clang++ -fsanitize=fuzzer,address,undefined -std=c++20 -Idisc/ral/include -Idisc/ral/src tests/fuzz/fuzz_loader.cc \
//     disc/ral/src/{core/{file,signature,sha256},cpu/cpu}.cc       then run it as any libFuzzer: fuzz_loader tests/fuzz/corpus/loader
//   g++ -DOWN_DRIVER ...                                 as tests/fuzz/test_fuzzers.py does: `fuzz_loader RUNS SEED CORPUS [NEW]`, guided by
//                                                        the edges that -fsanitize-coverage=trace-pc reports for the sources of the runtime
//
// The first byte of an input says whether hashes are to be made right first: what is behind them would never be reached otherwise.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/signature.h"

namespace {

constexpr size_t kHeader = 32, kEntry = 112, kDigest = 32;

template <typename T>
T number_at(const std::vector<uint8_t>& file, size_t place) {
  T value;
  std::memcpy(&value, file.data() + place, sizeof value);
  return value;
}

void put_digest(std::vector<uint8_t>& file, size_t place, std::span<const uint8_t> of) {
  const ral::Digest digest = ral::sha256(of);
  std::copy(digest.begin(), digest.end(), file.begin() + static_cast<ptrdiff_t>(place));
}

// Makes every hash right whose place and extent lie in the file, and the file's size.
void reseal(std::vector<uint8_t>& file) {
  if (file.size() < kHeader) return;
  const uint64_t size = file.size();
  std::memcpy(file.data() + 16, &size, sizeof size);
  const size_t count = number_at<uint32_t>(file, 12), end = kHeader + count * kEntry;
  if (count > 64 || end + kDigest > file.size()) return;
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = kHeader + i * kEntry;
    const uint64_t offset = number_at<uint64_t>(file, entry + 64), length = number_at<uint64_t>(file, entry + 72);
    if (offset <= file.size() && length <= file.size() - offset) put_digest(file, entry + 80, std::span(file).subspan(offset, length));
  }
  put_digest(file, end, std::span(file).first(end));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<uint8_t> file(data + 1, data + size);
  if (data[0] & 1) reseal(file);
  static const int fd = memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (ftruncate(fd, 0) != 0 || pwrite(fd, file.data(), file.size(), 0) != static_cast<ssize_t>(file.size())) std::abort();
  ral::ArtifactFile artifact;
  if (!artifact.open(path.c_str()).ok()) return 0;
  ral::Signature signature;
  const ral::Section* own = artifact.find("signature");
  for (const ral::Section& section : artifact.sections()) {
    if (section.name.starts_with("code/")) own = &artifact.signature_of(section.name.substr(5));
  }
  if (!own || !ral::read_signature(*own, &signature).ok()) return 0;
  for (const ral::Section& section : artifact.sections()) {  // what was accepted lies in the file
    if (section.bytes.data() < artifact.bytes().data()) std::abort();
    if (section.bytes.data() + section.bytes.size() > artifact.bytes().data() + artifact.bytes().size()) std::abort();
  }
  return 0;
}

#ifdef OWN_DRIVER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

namespace {

using Input = std::vector<uint8_t>;

constexpr size_t kEdges = 1 << 16, kLargest = 1 << 14;
uint8_t edges[kEdges], known[kEdges];
uintptr_t last_place;

std::vector<Input> corpus;
std::mt19937_64 generator;

size_t below(size_t bound) { return bound ? generator() % bound : 0; }

void mutate(Input& input) {
  constexpr uint64_t kOdd[] = {0,          1,          63,         64,          4096,        0x7fffffff, 0x80000000,
                               0xffffffff, 1ull << 40, 1ull << 63, ~uint64_t{}, ~uint64_t{} - 63};
  const size_t place = below(input.size());
  switch (below(7)) {
    case 0: input[place] ^= static_cast<uint8_t>(1u << below(8)); break;
    case 1: input[place] = static_cast<uint8_t>(generator()); break;
    case 2: input.resize(std::max<size_t>(1, place)); break;
    case 3: input.insert(input.begin() + static_cast<ptrdiff_t>(place), below(100), static_cast<uint8_t>(generator())); break;
    case 4: {  // an odd number in the place of one
      const size_t width = below(2) ? 8 : 4;
      if (place + width <= input.size()) std::memcpy(&input[place], &kOdd[below(std::size(kOdd))], width);
      break;
    }
    case 5: {  // a part of another input
      const Input& other = corpus[below(corpus.size())];
      const size_t from = below(other.size()), length = std::min({below(200), other.size() - from, input.size() - place});
      std::copy_n(other.begin() + static_cast<ptrdiff_t>(from), length, input.begin() + static_cast<ptrdiff_t>(place));
      break;
    }
    default: input.erase(input.begin() + static_cast<ptrdiff_t>(place), input.begin() + static_cast<ptrdiff_t>(std::min(input.size(), place + below(100))));
  }
  if (input.empty()) input.push_back(1);
  if (input.size() > kLargest) input.resize(kLargest);
}

bool finds_new(const Input& input) {
  std::memset(edges, 0, sizeof edges);
  last_place = 0;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  bool found = false;
  for (size_t i = 0; i < kEdges; ++i) {
    found |= edges[i] && !known[i];
    known[i] |= edges[i];
  }
  return found;
}

void save(const std::string& path, const Input& input) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
}

}  // namespace

// Called at every edge of the code under test.
extern "C" __attribute__((no_sanitize("address"))) void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  edges[(place ^ last_place >> 1) % kEdges] = 1;
  last_place = place;
}

int main(int argc, char** argv) {
  if (argc < 4) return 100;
  generator.seed(std::strtoull(argv[2], nullptr, 10));
  for (const auto& entry : std::filesystem::directory_iterator(argv[3])) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::sort(corpus.begin(), corpus.end());  // folders have no order
  for (const Input& input : corpus) finds_new(input);
  const size_t seeds = corpus.size();
  const std::string crash = argc > 4 ? std::string(argv[4]) + "/last" : "";
  for (long run = 0, runs = std::strtol(argv[1], nullptr, 10); run < runs; ++run) {
    Input input = corpus[below(corpus.size())];
    for (size_t i = 0, count = 1 + below(4); i < count; ++i) mutate(input);
    if (!crash.empty()) save(crash, input);  // what a crash leaves
    if (!finds_new(input)) continue;
    if (argc > 4) save(std::string(argv[4]) + "/" + std::to_string(corpus.size()), input);
    corpus.push_back(std::move(input));
  }
  std::printf("%zu %zu %ld\n", seeds, corpus.size(), std::count(known, known + kEdges, 1));
  return 0;
}
#endif
