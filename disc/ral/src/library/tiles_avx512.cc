#include <cmath>

#include "library/tiles.h"

namespace ral {

namespace {
constexpr int kVectorBytes = 64;
constexpr int kVectors = 4;
}  // namespace

#include "library/tiles.inc"

const Tiles kTilesAvx512 = {tile_of<float>, tile_of<double>, upper_factor_of<float>, upper_factor_of<double>,
                          stream_of<float>, stream_of<double>,
                          {dot_of<float>, add_to<float>, rotate_both<float>}, {dot_of<double>, add_to<double>, rotate_both<double>}};

}  // namespace ral
