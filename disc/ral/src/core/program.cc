#include "core/program.h"

#include <algorithm>
#include <charconv>

#include "core/devices.h"
#include "cpu/cores.h"
#include "cpu/cpu.h"
#include "cuda/gpu.h"

namespace ral {

namespace {

// "stub:x86-64-v3": the device of a code section, the CPU where none is named, and the ISA of its host code.
struct HostIsa {
  std::string_view device;
  std::string_view isa;
};

constexpr int32_t kBestRank = 4;  // of code for the CPU, and for devices that were registered; of GPUs see cuda::suits

HostIsa parse_isa(std::string_view name) {
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos) return {"cpu", name};
  return {name.substr(0, colon), name.substr(colon + 1)};
}

}  // namespace

Counts::Counts(const Signature& signature)
    : counters(signature.counters.size()), launches(signature.kernels.size()), nanoseconds(signature.kernels.size()) {}

void Counts::clear() {
  calls = copied_inputs = copied_bytes = graph_records = graph_replays = graph_evictions = graph_refusals = fetches = fetched_bytes = 0;
  for (auto* list : {&counters, &launches, &nanoseconds}) std::fill(list->begin(), list->end(), 0);
}

void Counts::add(const Counts& other) {
  const auto add_list = [](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  calls += other.calls;
  copied_inputs += other.copied_inputs;
  copied_bytes += other.copied_bytes;
  graph_records += other.graph_records;
  graph_replays += other.graph_replays;
  graph_evictions += other.graph_evictions;
  graph_refusals += other.graph_refusals;
  fetches += other.fetches;
  fetched_bytes += other.fetched_bytes;
  add_list(counters, other.counters);
  add_list(launches, other.launches);
  add_list(nanoseconds, other.nanoseconds);
}

Program::~Program() {
  if (!weights.empty()) static_cast<void>(device->synchronize());  // calls may have returned before they were done
  for (const void* weight : weights) {
    if (weight) device->drop_weight(weight);  // the last one may have none, where loading has failed
  }
}

Status Program::load_file(const char* path, const ral_options& options) {
  Status status = file.open(path);
  if (!status.ok()) return status;
  const auto manifest_bytes = file.find("manifest")->bytes;
  manifest.assign(reinterpret_cast<const char*>(manifest_bytes.data()), manifest_bytes.size());
  std::vector<const Section*> sections;
  std::vector<std::string> names;
  for (const Section& section : file.sections()) {
    if (!section.name.starts_with("code/")) continue;
    sections.push_back(&section);
    names.push_back(section.name.substr(5));
  }
  size_t chosen = 0;
  status = choose_code(names, options.isa, &chosen);
  if (status.ok()) status = read_signature(file.signature_of(names[chosen]), &signature);
  std::vector<const void*> found;
  if (status.ok()) status = find_weights(&found);
  if (status.ok()) status = finish_load(options, names[chosen], sections[chosen]->bytes, found);
  if (status.ok()) {
    const Section& section = *file.find("weights");
    weights_check_ = std::make_unique<WeightsCheck>(section.bytes, section.digest);
    path_ = path;
  }
  if (!status.ok() && !status.message.starts_with('\'')) status.message = "'" + std::string(path) + "': " + status.message;
  return status;
}

Status Program::load_memory(const ral_program& program, const ral_options& options) {
  if (program.manifest) manifest.assign(static_cast<const char*>(program.manifest), program.manifest_size);
  const Section given{"signature", {static_cast<const uint8_t*>(program.signature), program.signature_size}, {}};
  Status status = read_signature(given, &signature);
  if (!status.ok()) return status;
  if (program.weight_count != static_cast<int32_t>(signature.weights.size())) {
    return error(RAL_ERROR_ARTIFACT, "ral_load_memory: the signature has " + std::to_string(signature.weights.size()) + " weights, got " +
                                         std::to_string(program.weight_count));
  }
  verified_ = true;
  std::vector<std::string> names;
  for (int32_t i = 0; i < program.code_count; ++i) names.emplace_back(program.code[i].isa);
  size_t chosen = 0;
  status = choose_code(names, options.isa, &chosen);
  if (!status.ok()) return status;
  const ral_code& own = program.code[chosen];
  const std::vector<const void*> found(program.weights, program.weights + program.weight_count);
  return finish_load(options, names[chosen], {static_cast<const uint8_t*>(own.data), own.size}, found);
}

Status Program::find_weights(std::vector<const void*>* found) const {
  const auto region = file.find("weights")->bytes;
  for (const WeightInfo& weight : signature.weights) {
    const auto offset = static_cast<size_t>(weight.offset), size = static_cast<size_t>(weight.size);
    if (offset > region.size() || size > region.size() - offset) {
      return error(RAL_ERROR_ARTIFACT, "weight '" + weight.name + "' lies outside section 'weights'");
    }
    found->push_back(region.data() + offset);
  }
  return {};
}

Status Program::find_functions() {
  for (const std::string& name : signature.functions) {
    Function found;
    Status status = found.find(name);
    if (!status.ok()) return status;
    if (found.is_custom()) file.let_write();
    functions.push_back(std::move(found));
  }
  return {};
}

Status Program::finish_load(const ral_options& options, const std::string& isa, std::span<const uint8_t> shared_object,
                            const std::vector<const void*>& found) {
  default_threads = find_cores("").threads();
  threads = options.threads > 0 ? options.threads : default_threads;
  Status status = open_device(parse_isa(isa).device, parse_wanted(options.isa).id, &device);
  if (status.ok()) status = find_functions();
  if (!status.ok()) return status;
  on_device = device->open_program();
  weights.reserve(found.size());
  for (size_t slot = 0; slot < found.size(); ++slot) {
    status = device->place_weight(found[slot], signature.weights[slot].size, &weights.emplace_back(nullptr));
    if (!status.ok()) return status;
  }
  return code.load(isa, shared_object);
}

namespace {

// How well code suits this machine, 0 = not at all: `missing` says why. id: which GPU.
int32_t suits(const HostIsa& own, int32_t id, std::string* missing) {
  if (own.device != "cuda") {
    const std::string feature = missing_feature(own.isa);
    Device* device = nullptr;
    if (!open_device(own.device, id, &device).ok()) *missing = "the device '" + std::string(own.device) + "'";
    else if (!feature.empty()) *missing = "the CPU feature '" + feature + "'";
    return missing->empty() ? kBestRank : 0;
  }
  std::string_view host = own.isa;
  const int32_t architecture = cuda::split_architecture(own.isa, &host);
  const std::string feature = missing_feature(host);
  cuda::Gpu* gpu = nullptr;
  if (architecture == 0) {
    *missing = "the device 'cuda', of a kind that it does not name";
  } else if (!feature.empty()) {
    *missing = "the CPU feature '" + feature + "'";
  } else if (const Status status = cuda::find_gpu(id, &gpu); !status.ok()) {
    *missing = "a GPU, but " + status.message;
  } else if (const int32_t rank = cuda::suits(architecture, gpu->architecture())) {
    return rank;
  } else {
    *missing = "another GPU than " + gpu->text() + ", which is sm_" + std::to_string(gpu->architecture());
  }
  return 0;
}

}  // namespace

Wanted parse_wanted(const char* text) {
  if (!text) return {};
  const std::string_view all = text;
  const size_t at = all.rfind('@');
  if (at == std::string_view::npos) return {std::string(all), 0};
  int32_t id = -1;
  const char *first = text + at + 1, *last = text + all.size();
  const auto [end, failed] = std::from_chars(first, last, id);
  return {std::string(all.substr(0, at)), failed == std::errc() && end == last ? id : -1};
}

Status choose_code(const std::vector<std::string>& isas, const char* wanted, size_t* chosen) {
  const Wanted what = parse_wanted(wanted);
  std::string refused;
  int32_t best = 0;
  for (const bool gpus : {false, true}) {  // the driver is asked where nothing else runs
    for (size_t i = isas.size(); i-- > 0 && best < kBestRank;) {
      const HostIsa own = parse_isa(isas[i]);
      if ((own.device == "cuda") != gpus || (wanted && isas[i] != what.name && own.device != what.name)) continue;
      std::string missing;
      const int32_t rank = suits(own, what.id, &missing);
      if (rank > best) *chosen = i;
      best = std::max(best, rank);
      if (rank == 0) refused += (refused.empty() ? "" : "; ") + std::string("code for ") + isas[i] + " needs " + missing;
    }
    if (best > 0) return {};
  }
  if (!refused.empty()) return error(RAL_ERROR_TARGET, "this machine cannot run the artifact: " + refused);
  return error(RAL_ERROR_TARGET, wanted ? "the artifact has no code for " + what.name : "the artifact has no code");
}

Status Program::verify() {
  if (verified_.load(std::memory_order_acquire)) return {};
  if (!weights_check_->passed()) return error(RAL_ERROR_ARTIFACT, "'" + path_ + "': section 'weights': hash differs, the file is damaged");
  verified_.store(true, std::memory_order_release);
  return {};
}

}  // namespace ral
