#include "library/lanes.h"

namespace ral {

#include "library/lanes.inc"

const LaneFunctions kLanesAvx512 = kFunctions;

}  // namespace ral
