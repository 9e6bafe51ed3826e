#include "core/fork.h"

#include <pthread.h>

#include <mutex>

namespace ral {

namespace {

constinit std::mutex registry;
constinit ForkRegistration* first = nullptr;

void before_fork() {
  registry.lock();
  for (const ForkRegistration* each = first; each; each = each->next()) each->object().before_fork();
}

void after_fork(bool in_child) {
  for (const ForkRegistration* each = first; each; each = each->next()) each->object().after_fork(in_child);
  registry.unlock();
}

[[maybe_unused]] const int handlers = pthread_atfork(before_fork, [] { after_fork(false); }, [] { after_fork(true); });

}  // namespace

ForkRegistration::ForkRegistration(ForkAware& object) noexcept : object_(object) {
  const std::lock_guard lock(registry);
  next_ = first;
  if (next_) next_->previous_ = this;
  first = this;
}

ForkRegistration::~ForkRegistration() {
  const std::lock_guard lock(registry);
  (previous_ ? previous_->next_ : first) = next_;
  if (next_) next_->previous_ = previous_;
}

}  // namespace ral
