// Convolutions by kernels that are known at run time alone, and the gradients of kernels, by Winograd's method ("Fast Algorithms for
// Convolutional Neural Networks", Lavin and Gray 2015): windows of 3x3 or 5x5, strides of 1, planes with channels first, in f32.
// A tile of m x m outputs reads a patch of 6 x 6 (m = 4 or 2), by the points 0, 1, -1, 2, -2 and infinity, so both windows share the transform
// of the source; or, by windows of 5x5, one of 8 x 8 (m = 4), by 1/2 and -1/2, too. With A and G, whose rows are powers of the points, and
// products over the positions of a patch:
//   a tile y = A^T [sum over channels of (G g G^T) * (B^T d B)] A,    a gradient dg = G^T [sum over tiles of (A dy A^T) * (B^T d B)] G.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ral::winograd {

// By windows of 5x5 over 64 channels of normal numbers results are off by 1.8e-6 of their size with 6 x 6, by 3.0e-6 with 8 x 8 (root of the
// mean square), where rounding to f16 makes 2e-4 and to bf16 2e-3: those of 16 bits take whichever has fewer products, those of f32 6 x 6.
// By windows of 3x3, 8 x 8 has 0.91 of the products on planes of 28 and 56: it gained 3 to 5 % there, and lost 4 to 27 % over 128 channels.
constexpr int64_t kNearPatch = 6, kFarPatch = 8;
constexpr int64_t kUnit = 16;     // what channels are padded to in scratch
constexpr int64_t kPanel = 64;    // columns of a tile of sums
constexpr int64_t kBlock = 18;    // tiles of the image whose patches are transformed at a time: 3 tiles of a product
constexpr int64_t kSummed = 50;   // the same of gradients, whose products run over them: with 18 the sums' loads and stores take half of the time
constexpr int64_t kBandTiles = 48;  // of a task: as many whole rows of tiles as have so many
constexpr int64_t kGap = 16;      // elements between two positions' matrices: else all would share the sets of a cache

inline int64_t padded(int64_t channels) { return (channels + kUnit - 1) / kUnit * kUnit; }

// How a type of elements is read and written, `count` of them that lie side by side. Computed is in f32.
struct Elements {
  int64_t bytes;
  void (*widen)(const char* from, int64_t count, float* to);
  void (*narrow)(const float* from, int64_t count, char* to);

  float at(const char* from, int64_t place) const {
    float value;
    widen(from + place * bytes, 1, &value);
    return value;
  }
};

// low_y, low_x: zeros before the source along each axis. elements: of the source, the kernel and the result.
struct Shape {
  int64_t images, channels, outputs, height, width, out_height, out_width, low_y, low_x, window, patch;
  Elements elements;

  int64_t positions() const { return patch * patch; }
  int64_t tile() const { return patch + 1 - window; }
  int64_t down() const { return (out_height + tile() - 1) / tile(); }
  int64_t across() const { return (out_width + tile() - 1) / tile(); }
  int64_t band() const;   // rows of tiles of a task at most
  int64_t bands() const { return (down() + band() - 1) / band(); }  // of an image
  int64_t wide() const { return across() * tile() + window - 1; }  // columns of the source of a band
  int64_t tall() const { return band() * tile() + window - 1; }
  int64_t in() const { return padded(channels); }
  int64_t out() const { return padded(outputs); }
  int64_t matrices() const { return positions() * in() * out(); }  // elements of all transformed kernels
  // In the kernel, of an element of its window.
  int64_t place(int64_t output, int64_t channel, int64_t at) const { return (output * channels + channel) * window * window + at; }
  int64_t scratch(int64_t block) const;  // bytes, of a task
};

inline int64_t Shape::band() const {
  const int64_t rows = (kBandTiles + across() - 1) / across();
  return rows < down() ? rows : down();
}

// Elements from one position to the next, of so many tiles.
inline int64_t step_of(int64_t block, int64_t channels) { return block * channels + kGap; }

inline int64_t Shape::scratch(int64_t block) const {
  const int64_t results = band() * tile() * across() * tile(), lines = std::max(tall() * width * channels, band() * tile() * out_width * outputs);
  const int64_t places = tall() * wide() * in() + results * out() + lines;
  return 4 * (places + positions() * (step_of(block, in()) + step_of(block, out())));
}

// For one kind of processor, patch and window. Ranges [begin, end) are of: outputs in units; bands of all images; images; channels.
struct Functions {
  // G g G^T of the kernels of those outputs: matrices[position][panel of outputs][channel][output of the panel].
  void (*kernels)(const Shape& shape, const float* kernel, float* matrices, int64_t begin, int64_t end);
  void (*convolve)(const Shape& shape, const char* source, const float* kernel, const float* matrices, char* result, int64_t begin, int64_t end,
                   float* scratch);
  // Sums over the images, sums[position][channel][output].
  void (*gradient)(const Shape& shape, const char* source, const char* result, float* sums, int64_t begin, int64_t end, float* scratch);
  // G^T s G of the sums s of all parts, which lie one behind the other, in their order; into the gradients of the kernels.
  void (*finish)(const Shape& shape, float* sums, int64_t parts, float* gradients, int64_t begin, int64_t end);
};

const Functions &for_avx2(int64_t patch, int64_t window), &for_avx512(int64_t patch, int64_t window);  // x86-64-v3, x86-64-v4

}  // namespace ral::winograd
