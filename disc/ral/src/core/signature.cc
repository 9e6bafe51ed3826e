#include "core/signature.h"

#include <array>
#include <cstring>

namespace ral {

namespace {

constexpr uint32_t kSignatureVersion = 1;
constexpr uint32_t kMaxRank = 64;
constexpr uint32_t kWritten = 0x100, kRowMajor = 0x200, kSpoiled = 0x800;  // added to the dtype of an input
constexpr uint32_t kReplaces = 0x400;                                      // added to the dtype of an output

struct DtypeInfo {
  const char* name;
  int64_t size;
};

constexpr std::array<DtypeInfo, 15> kDtypes{{{"i1", 1},
                                             {"i8", 1},
                                             {"i16", 2},
                                             {"i32", 4},
                                             {"i64", 8},
                                             {"ui8", 1},
                                             {"ui16", 2},
                                             {"ui32", 4},
                                             {"ui64", 8},
                                             {"f16", 2},
                                             {"bf16", 2},
                                             {"f32", 4},
                                             {"f64", 8},
                                             {"complex64", 8},
                                             {"complex128", 16}}};

// A bounds-checked reader. After the first failure `ok` stays false and every value read is 0 or empty.
struct Reader {
  std::span<const uint8_t> rest;
  bool ok = true;

  template <typename T>
  T number() {
    T value{};
    if (rest.size() < sizeof(T)) {
      ok = false;
      rest = {};
      return value;
    }
    std::memcpy(&value, rest.data(), sizeof(T));
    rest = rest.subspan(sizeof(T));
    return value;
  }

  std::string text() {
    const size_t size = number<uint32_t>();
    if (size > rest.size()) ok = false;
    if (!ok) return {};
    std::string value(reinterpret_cast<const char*>(rest.data()), size);
    rest = rest.subspan(size);
    if (value.find('\0') != std::string::npos) ok = false;  // names are handed to C as strings
    return value;
  }

  // The number of elements of a list, each of at least `least` bytes: a false count cannot ask for more memory than the file has.
  uint32_t count(size_t least) {
    const uint32_t value = number<uint32_t>();
    if (value > rest.size() / least) ok = false;
    return ok ? value : 0;
  }

  std::vector<std::string> texts() {
    std::vector<std::string> values(count(sizeof(uint32_t)));
    for (std::string& value : values) value = text();
    return values;
  }

  ValueInfo value(bool with_dims) {
    ValueInfo info;
    info.name = text();
    uint32_t dtype = number<uint32_t>();
    info.written = with_dims && dtype & kWritten;
    if (info.written) dtype -= kWritten;
    info.spoiled = with_dims && dtype & kSpoiled;
    if (info.spoiled) dtype -= kSpoiled;
    if (info.spoiled && !info.written) ok = false;
    const bool row_major = with_dims && dtype & kRowMajor;
    if (row_major) dtype -= kRowMajor;
    const bool replaces = !with_dims && dtype & kReplaces;
    if (replaces) dtype -= kReplaces;
    const uint32_t rank = number<uint32_t>();
    if (dtype >= kDtypes.size() || rank > kMaxRank) ok = false;
    if (!ok) return info;
    info.dtype = static_cast<int32_t>(dtype);
    info.rank = static_cast<int32_t>(rank);
    for (uint32_t i = 0; with_dims && i < rank; ++i) {
      info.dims.push_back(number<int64_t>());
      if (info.dims.back() < -1) ok = false;
    }
    if (row_major) {
      info.row_major = text();
      if (info.row_major.empty()) ok = false;
    }
    if (replaces) {
      info.replaces = number<int32_t>();
      if (info.replaces < 0) ok = false;
    }
    return info;
  }

  std::vector<ValueInfo> values(bool with_dims) {
    std::vector<ValueInfo> list(count(3 * sizeof(uint32_t)));
    for (ValueInfo& info : list) info = value(with_dims);
    return list;
  }

  WeightInfo weight() {
    WeightInfo info;
    info.name = text();
    info.offset = number<int64_t>();
    info.size = number<int64_t>();
    if (info.offset < 0 || info.size < 0 || info.offset % 64 != 0) ok = false;
    return info;
  }
};

// Whether each output that may replace an input is of its type, and the only one to do so.
bool replace_inputs(const Signature& signature) {
  std::vector<bool> taken(signature.inputs.size(), false);
  for (const ValueInfo& info : signature.outputs) {
    if (info.replaces < 0) continue;
    const auto place = static_cast<size_t>(info.replaces);
    if (place >= taken.size() || taken[place]) return false;
    const ValueInfo& input = signature.inputs[place];
    if (input.dtype != info.dtype || input.rank != info.rank || input.written) return false;
    taken[place] = true;
  }
  return true;
}

}  // namespace

int64_t dtype_size(int32_t dtype) {
  return dtype >= 0 && dtype < static_cast<int32_t>(kDtypes.size()) ? kDtypes[static_cast<size_t>(dtype)].size : 0;
}

const char* dtype_name(int32_t dtype) {
  return dtype >= 0 && dtype < static_cast<int32_t>(kDtypes.size()) ? kDtypes[static_cast<size_t>(dtype)].name : "unknown";
}

Status read_signature(const Section& section, Signature* signature) {
  Reader reader{section.bytes};
  const uint32_t version = reader.number<uint32_t>();
  if (!reader.ok || version != kSignatureVersion) {
    return error(RAL_ERROR_ARTIFACT,
                 "section '" + section.name + "': version " + std::to_string(version) + ", expected " + std::to_string(kSignatureVersion) +
                     "; rebuild the artifact with this disc");
  }
  signature->inputs = reader.values(true);
  for (const ValueInfo& info : signature->inputs) {
    signature->writes_inputs |= info.written;
    signature->spoils_inputs |= info.spoiled;
  }
  signature->outputs = reader.values(false);
  if (!replace_inputs(*signature)) reader.ok = false;
  signature->checks = reader.texts();
  signature->kernels = reader.texts();
  signature->counters = reader.texts();
  signature->weights.resize(reader.count(sizeof(uint32_t) + 2 * sizeof(int64_t)));
  for (WeightInfo& weight : signature->weights) weight = reader.weight();
  if (reader.ok && !reader.rest.empty()) signature->functions = reader.texts();
  if (!reader.ok || !reader.rest.empty()) return error(RAL_ERROR_ARTIFACT, "section '" + section.name + "' is malformed");
  return {};
}

}  // namespace ral
