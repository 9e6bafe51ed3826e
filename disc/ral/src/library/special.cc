// Functions of two numbers that take iterations, element by element: Hurwitz' zeta function and the regularized incomplete gamma functions, by
// the algorithms of the Cephes Mathematical Library (S. L. Moshier), in f64.
#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>

#include "library/checks.h"
#include "library/elements.h"
#include "library/functions.h"

namespace ral {

namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon() / 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kBlock = 64;  // elements of a task
constexpr int64_t kCostPerElement = 200 * RAL_COST_PER_NANOSECOND;
constexpr int kMostSteps = 1 << 20;
constexpr double kLargeA = 1e6;  // from there on one term of the uniform expansion is exact to 1e-12

double log_gamma(double x) {
  int sign = 0;
  return lgamma_r(x, &sign);
}

// log(1 + x) - x
double log1p_less(double x) {
  if (std::abs(x) > 0.1) return std::log1p(x) - x;
  double sum = 0, power = x;
  for (int k = 2; k < 40; ++k) {
    power *= -x;
    sum += power / k;
    if (std::abs(power) <= kEpsilon * std::abs(sum)) break;
  }
  return sum;
}

// x^a * exp(-x) / gamma(a); for a large a by Stirling's series, so that nothing large cancels.
double gamma_factor(double a, double x) {
  if (a < 10) return std::exp(a * std::log(x) - x - log_gamma(a));
  const double square = 1 / (a * a), rest = (1.0 / 12 - square * (1.0 / 360 - square * (1.0 / 1260 - square / 1680))) / a;
  return std::sqrt(a / (2 * std::numbers::pi)) * std::exp(a * log1p_less((x - a) / a) - rest);
}

double lower_series(double a, double x) {
  double r = a, term = 1, sum = 1;
  for (int step = 0; step < kMostSteps; ++step) {
    r += 1;
    term *= x / r;
    sum += term;
    if (term <= kEpsilon * sum) break;
  }
  return sum * gamma_factor(a, x) / a;
}

double upper_series(double a, double x) {
  double factor = 1, sum = 0;
  for (int n = 1; n < kMostSteps; ++n) {
    factor *= -x / n;
    const double term = factor / (a + n);
    sum += term;
    if (std::abs(term) <= kEpsilon * std::abs(sum)) break;
  }
  const double logarithm = a * std::log(x);
  return -std::expm1(logarithm - log_gamma(1 + a)) - std::exp(logarithm - log_gamma(a)) * sum;
}

double upper_fraction(double a, double x) {
  constexpr double kBig = 4503599627370496.0;
  double y = 1 - a, z = x + y + 1, c = 0, p2 = 1, q2 = x, p1 = x + 1, q1 = z * x, value = p1 / q1;
  for (int step = 0; step < kMostSteps; ++step) {
    c += 1;
    y += 1;
    z += 2;
    const double p = p1 * z - p2 * (y * c), q = q1 * z - q2 * (y * c);
    double change = 1;
    if (q != 0) {
      const double next = p / q;
      change = std::abs((value - next) / next);
      value = next;
    }
    p2 = p1, p1 = p, q2 = q1, q1 = q;
    if (std::abs(p) > kBig) p2 /= kBig, p1 /= kBig, q2 /= kBig, q1 /= kBig;
    if (change <= kEpsilon) break;
  }
  return value * gamma_factor(a, x);
}

// N. M. Temme, "The asymptotic expansion of the incomplete gamma functions", 1979: the lower one, or the upper.
double expanded(double a, double x, bool upper) {
  const double mu = (x - a) / a, eta = std::copysign(std::sqrt(-2 * log1p_less(mu)), mu), sign = upper ? 1 : -1;
  constexpr double kTerms[] = {-1.0 / 3, 1.0 / 12, -2.0 / 135, 1.0 / 864, 1.0 / 2835, -139.0 / 777600};
  double term = 0;
  if (std::abs(eta) < 0.05) {
    for (int k = 5; k >= 0; --k) term = term * eta + kTerms[k];
  } else {
    term = 1 / mu - 1 / eta;
  }
  return std::erfc(sign * eta * std::sqrt(a / 2)) / 2 + sign * std::exp(-a * eta * eta / 2) / std::sqrt(2 * std::numbers::pi * a) * term;
}

// The part of gamma(a) from 0 to x, or from x on.
double incomplete_gamma(double a, double x, bool upper) {
  if (!(a >= 0 && x >= 0)) return kNan;
  if (a == 0) return x > 0 ? (upper ? 0 : 1) : kNan;
  if (x == 0) return upper ? 1 : 0;
  if (std::isinf(a)) return std::isinf(x) ? kNan : (upper ? 1 : 0);
  if (std::isinf(x)) return upper ? 0 : 1;
  if (a > kLargeA) return expanded(a, x, upper);
  if (!upper) return x > 1 && x > a ? 1 - upper_fraction(a, x) : lower_series(a, x);
  if (x > 1.1) return x < a ? 1 - lower_series(a, x) : upper_fraction(a, x);
  const bool from_below = x <= 0.5 ? -0.4 / std::log(x) < a : x * 1.1 < a;
  return from_below ? 1 - lower_series(a, x) : upper_series(a, x);
}

constexpr double kLeastQ = -1e8;  // of which the sum has as many terms

double hurwitz_zeta(double x, double q) {
  constexpr double kBernoulli[] = {12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10,
                                   -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
                                   1.8152105401943546773e17, -7.1661652561756670113e18};  // (2k)! / B2k
  if (x == 1) return kInfinity;
  if (!(x >= 1)) return kNan;
  if (q <= 0) {
    if (q == std::floor(q)) return kInfinity;
    if (x != std::floor(x)) return kNan;
  }
  double sum = std::pow(q, -x), a = q, power = 0;
  for (int i = 0; i < 9 || a <= 9;) {
    ++i;
    a += 1;
    power = std::pow(a, -x);
    sum += power;
    if (-kEpsilon * sum < power && power < kEpsilon * sum) return sum;
  }
  const double end = a;
  sum += power * end / (x - 1) - 0.5 * power;
  double factor = 1, k = 0;
  for (const double number : kBernoulli) {
    factor *= x + k;
    power /= end;
    const double term = factor * power / number;
    sum += term;
    if (std::abs(term / sum) < kEpsilon) break;
    k += 1;
    factor *= x + k;
    power /= end;
    k += 1;
  }
  return sum;
}

// Of operands of one shape.
template <typename Function>
void over_elements(LibraryCall& call, const Function& function) {
  const ral_tensor &left = call.operands[0], &right = call.operands[1], &result = call.results[0];
  const int64_t count = element_count(left);
  if (!demand(call, is_like(right, left, left.dtype) && is_like(result, left, left.dtype))) return;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    call.parallel((count + kBlock - 1) / kBlock, kBlock * kCostPerElement, 0, [&](int64_t begin, int64_t end, char*) {
      for (int64_t i = begin * kBlock; i < std::min(count, end * kBlock); ++i) {
        static_cast<T*>(result.data)[i] = static_cast<T>(function(static_cast<const T*>(left.data)[i], static_cast<const T*>(right.data)[i]));
      }
    });
  };
  if (left.dtype == RAL_F32) return run(float{});
  if (left.dtype == RAL_F64) return run(double{});
  call.fail("is computed in f32 and f64 alone", RAL_ERROR_DTYPE);
}

}  // namespace

void igamma(LibraryCall& call) {
  over_elements(call, [](double a, double x) { return incomplete_gamma(a, x, false); });
}

void igammac(LibraryCall& call) {
  over_elements(call, [](double a, double x) { return incomplete_gamma(a, x, true); });
}

void zeta(LibraryCall& call) {
  std::atomic<bool> endless{false};
  over_elements(call, [&](double x, double q) {
    if (q >= kLeastQ || q == std::floor(q) || std::isnan(q)) return hurwitz_zeta(x, q);
    endless.store(true, std::memory_order_relaxed);
    return kNan;
  });
  if (endless.load(std::memory_order_relaxed)) call.fail("q is below -1e8: the sum has more than 1e8 terms");
}

}  // namespace ral
