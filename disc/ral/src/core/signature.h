// What the runtime knows about a program: its inputs, outputs and the names of its checks, kernels and counters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/status.h"

namespace ral {

struct ValueInfo {
  std::string name;
  int32_t dtype = 0;
  int32_t rank = 0;
  std::vector<int64_t> dims;  // inputs only; -1 = dynamic
  bool written = false;       // inputs only: the code may write to its memory
  bool spoiled = false;       // inputs only: written, and of no use afterwards
  int32_t replaces = -1;      // outputs only: the input in whose memory the code may be told to compute it; -1 = none
  std::string row_major;      // inputs only: where the program decides by its strides, for which it must be row-major; "" = nowhere
};

struct WeightInfo {
  std::string name;
  int64_t offset = 0;  // in the weights section, a multiple of 64
  int64_t size = 0;    // bytes
};

struct Signature {
  std::vector<ValueInfo> inputs;
  bool writes_inputs = false;  // whether one of them is written
  bool spoils_inputs = false;  // whether one of them is spoiled
  std::vector<ValueInfo> outputs;
  std::vector<std::string> checks;  // message templates
  std::vector<std::string> kernels;
  std::vector<std::string> counters;
  std::vector<WeightInfo> weights;
  std::vector<std::string> functions;  // of the library, that the code calls
};

int64_t dtype_size(int32_t dtype);  // bytes; 0 = unknown
const char* dtype_name(int32_t dtype);

// Reads the binary form (docs/artifact.md, "Signature"). Every length is checked before use; nothing may be left over.
Status read_signature(const Section& section, Signature* signature);

}  // namespace ral
