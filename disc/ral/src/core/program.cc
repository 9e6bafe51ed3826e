#include "core/program.h"

#include <algorithm>

#include "cpu/cores.h"
#include "cpu/cpu.h"

namespace ral {

Counts::Counts(const Signature& signature)
    : counters(signature.counters.size()), launches(signature.kernels.size()), nanoseconds(signature.kernels.size()) {}

void Counts::clear() {
  calls = copied_inputs = copied_bytes = 0;
  for (auto* list : {&counters, &launches, &nanoseconds}) std::fill(list->begin(), list->end(), 0);
}

void Counts::add(const Counts& other) {
  const auto add_list = [](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  calls += other.calls;
  copied_inputs += other.copied_inputs;
  copied_bytes += other.copied_bytes;
  add_list(counters, other.counters);
  add_list(launches, other.launches);
  add_list(nanoseconds, other.nanoseconds);
}


Status Program::load_file(const char* path, const ral_options& options) {
  Status status = file.open(path);
  if (!status.ok()) return status;
  const auto manifest_bytes = file.find("manifest")->bytes;
  manifest.assign(reinterpret_cast<const char*>(manifest_bytes.data()), manifest_bytes.size());
  status = read_signature(file.find("signature")->bytes, &signature);
  if (status.ok()) status = place_weights();
  std::vector<std::string> names;
  std::vector<ral_code> sections;
  names.reserve(file.sections().size());  // `sections` points into the strings
  for (const Section& section : file.sections()) {
    if (!section.name.starts_with("code/")) continue;
    names.push_back(section.name.substr(5));
    sections.push_back({names.back().c_str(), section.bytes.data(), section.bytes.size()});
  }
  if (status.ok()) status = finish_load(options, sections);
  if (status.ok()) {
    const Section& section = *file.find("weights");
    weights_check_ = std::make_unique<WeightsCheck>(section.bytes, section.digest);
  }
  if (!status.ok() && !status.message.starts_with('\'')) status.message = "'" + std::string(path) + "': " + status.message;
  return status;
}

Status Program::load_memory(const ral_program& program, const ral_options& options) {
  if (program.manifest) manifest.assign(static_cast<const char*>(program.manifest), program.manifest_size);
  const Status status = read_signature({static_cast<const uint8_t*>(program.signature), program.signature_size}, &signature);
  if (!status.ok()) return status;
  if (program.weight_count != static_cast<int32_t>(signature.weights.size())) {
    return error(RAL_ERROR_ARTIFACT, "ral_load_memory: the signature has " + std::to_string(signature.weights.size()) + " weights, got " +
                                         std::to_string(program.weight_count));
  }
  weights.assign(program.weights, program.weights + program.weight_count);
  verified_ = true;
  return finish_load(options, {program.code, program.code + program.code_count});
}

Status Program::place_weights() {
  const auto region = file.find("weights")->bytes;
  for (const WeightInfo& weight : signature.weights) {
    const auto offset = static_cast<size_t>(weight.offset), size = static_cast<size_t>(weight.size);
    if (offset > region.size() || size > region.size() - offset) {
      return error(RAL_ERROR_ARTIFACT, "weight '" + weight.name + "' lies outside section 'weights'");
    }
    weights.push_back(region.data() + offset);
  }
  return {};
}

// Loads the last section that this CPU can run, or the one asked for.
Status Program::finish_load(const ral_options& options, const std::vector<ral_code>& sections) {
  default_threads = find_cores("").threads();
  threads = options.threads > 0 ? options.threads : default_threads;
  std::string refused;
  for (auto section = sections.rbegin(); section != sections.rend(); ++section) {
    if (options.isa && std::string_view(options.isa) != section->isa) continue;
    const std::string missing = missing_feature(section->isa);
    if (missing.empty()) return code.load(section->isa, {static_cast<const uint8_t*>(section->data), section->size});
    refused += (refused.empty() ? "" : "; ") + std::string("code for ") + section->isa + " needs the CPU feature '" + missing + "'";
  }
  if (!refused.empty()) return error(RAL_ERROR_TARGET, "this CPU cannot run the artifact: " + refused);
  return error(RAL_ERROR_TARGET, options.isa ? "the artifact has no code for " + std::string(options.isa) : "the artifact has no CPU code");
}

Status Program::verify() {
  if (verified_.load(std::memory_order_acquire)) return {};
  if (!weights_check_->passed()) return error(RAL_ERROR_ARTIFACT, "section 'weights': hash differs, the file is damaged");
  verified_.store(true, std::memory_order_release);
  return {};
}

}  // namespace ral
