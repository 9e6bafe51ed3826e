#include "library/lanes.h"

namespace ral {

#include "library/lanes.inc"

const LaneFunctions kLanesAvx2 = kFunctions;

}  // namespace ral
