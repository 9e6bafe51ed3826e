// What a forked child inherits: all memory as it is at that moment, but of the threads only the one that forks.
#pragma once

#include <new>

namespace ral {

// State that must be whole in a child, whatever other threads are doing when it is forked. fork() calls `before_fork` of every registered
// object, then in both processes `after_fork`, which in the child also drops what was other threads' business.
//
// Order of locks: `before_fork` takes the lock that guards the object, if there is one, and `after_fork` gives it back. A thread holds at
// most one such lock at a time, and asks for none while it holds one; so the order among them does not matter, and no lock is held long.
// The lock of the registry comes before all of them: it is held from `before_fork` to `after_fork`, and while an object is registered or
// removed, which nobody does who holds another lock.
class ForkAware {
 public:
  virtual void before_fork() noexcept = 0;
  virtual void after_fork(bool in_child) noexcept = 0;

 protected:
  ~ForkAware() = default;
};

// Registers an object for as long as it lives. The last member of a class, so that the rest is there whenever the process is forked.
class ForkRegistration {
 public:
  explicit ForkRegistration(ForkAware& object) noexcept;
  ForkRegistration(const ForkRegistration&) = delete;
  ForkRegistration& operator=(const ForkRegistration&) = delete;
  ~ForkRegistration();

  ForkAware& object() const { return object_; }
  ForkRegistration* next() const { return next_; }

 private:
  ForkAware& object_;
  ForkRegistration* next_;
  ForkRegistration* previous_ = nullptr;
};

// One object of the process, made when the library is loaded and never destroyed: threads use it while the process exits.
template <typename T>
class Immortal {
 public:
  Immortal() { new (storage_) T; }
  T& operator*() noexcept { return *std::launder(reinterpret_cast<T*>(storage_)); }
  T* operator->() noexcept { return &**this; }

 private:
  alignas(T) unsigned char storage_[sizeof(T)];
};

}  // namespace ral
