#include "python/python_tensor.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <array>
#include <deque>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ral::python {

namespace {

constexpr std::array<const char*, 20> kErrorNames{
    nullptr,         "InputRankError", "InputTypeError", "DeviceError",    "ShapeConstraintError", "AliasError",          "OutOfMemoryError",
    "ArtifactError", "TargetError",    "CompilerBug",    "CancelledError", "InputValueError",      "SingularMatrixError", "CustomOpError",
    "StructureError", "CycleError",     "MissingFieldError", "NodeIndexError", "NodeKindError",
    "WrittenError"};

// What `set_stream` was given for this thread.
thread_local std::optional<int64_t> python_stream;

// What `set_stop` was given for this thread, a reference that it owns: null = nothing.
thread_local PyObject* python_stop = nullptr;

// Runs in a call, without the GIL. Signals are handled by Python's main thread alone; an error stays set, and is raised behind the call.
int32_t asked_python(void*) {
  const PyGILState_STATE state = waiting_for_gil([] { return PyGILState_Ensure(); });
  int stop = PyErr_CheckSignals() != 0;
  if (!stop && python_stop) {
    PyObject* answer = waiting_for_gil([] { return PyObject_CallNoArgs(python_stop); });
    stop = answer ? PyObject_IsTrue(answer) : 1;
    Py_XDECREF(answer);
  }
  PyGILState_Release(state);
  return stop;
}

// What `set_observer` was given for this thread, a reference that it owns: null = nothing.
thread_local PyObject* python_observer = nullptr;

// Runs in a call, without the GIL. An error of the observer ends no call: Python reports it. What a signal raised comes again behind the call.
void tell_python(void*, const char* name, int64_t kernel) {
  const PyGILState_STATE state = waiting_for_gil([] { return PyGILState_Ensure(); });
  PyObject* observer = Py_XNewRef(python_observer);
  PyObject* answer = nullptr;
  if (observer) answer = waiting_for_gil([&] { return PyObject_CallFunction(observer, "zL", name, static_cast<long long>(kernel)); });
  if (observer && !answer) {
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
      PyErr_Clear();
      PyErr_SetInterrupt();
    } else {
      PyErr_WriteUnraisable(observer);
    }
  }
  Py_XDECREF(answer);
  Py_XDECREF(observer);
  PyGILState_Release(state);
}

// Raises InputTypeError for the Python error that is set, keeping it as the cause. What is no `Exception` (KeyboardInterrupt, SystemExit)
// goes on as it is.
[[noreturn]] void raise_unreadable(const Place& place, nb::python_error& cause) {
  if (!cause.matches(PyExc_Exception)) throw nb::python_error(cause);
  const nb::object error_type = nb::module_::import_("disc.errors").attr("InputTypeError");
  const std::string text = nb::str(cause.value()).c_str();  // PyTorch adds lines on its own sources
  const std::string line = text.substr(0, text.find('\n'));
  nb::raise_from(cause, error_type.ptr(), "%scannot be read as a tensor: %s", place.text().c_str(), line.c_str());
}

// Calls a function that may be written in Python. kwargs: a dict, or null.
nb::object call_python(const nb::object& function, const nb::tuple& arguments, PyObject* kwargs = nullptr) {
  PyObject* result = waiting_for_gil([&] { return PyObject_Call(function.ptr(), arguments.ptr(), kwargs); });
  if (!result) nb::raise_python_error();
  return nb::steal(result);
}

// An attribute that may be computed in Python.
nb::object attribute(nb::handle object, const char* name) {
  PyObject* found = waiting_for_gil([&] { return PyObject_GetAttrString(object.ptr(), name); });
  if (!found) nb::raise_python_error();
  return nb::steal(found);
}

nb::object call_method(nb::handle object, const char* name) { return call_python(attribute(object, name), nb::make_tuple()); }

struct KnownType {
  nb::object type;  // held, so that its address is not reused
  const DLPackExchangeAPI* exchange;  // its exchange interface, or null
  nb::object is_neg;                  // torch's method, or null: whether the memory holds the values negated
  bool masked;                        // a NumPy array with a mask
  bool stored;                        // `Stored`
};

bool is_masked_array(nb::handle type) {
  for (const nb::handle base : nb::borrow<nb::tuple>(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_mro)) {
    if (std::string_view(reinterpret_cast<PyTypeObject*>(base.ptr())->tp_name) != "MaskedArray") continue;
    return std::string_view(nb::str(base.attr("__module__")).c_str()).starts_with("numpy.ma");
  }
  return false;
}

// The exchange interface of a type, in the version that this file knows (a type of a newer DLPack may keep an older interface); null = none.
const DLPackExchangeAPI* exchange_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* header = static_cast<DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  const auto* exchange = reinterpret_cast<const DLPackExchangeAPI*>(header);
  return exchange && exchange->dltensor_from_py_object_no_sync ? exchange : nullptr;
}

// What is known of an object's type. Looked up once per type; guarded by the GIL.
const KnownType& known_type(nb::handle object) {
  static auto& known = *new std::deque<KnownType>;  // never destroyed: it holds Python objects; entries stay where they are
  const nb::handle type = object.type();
  for (const KnownType& entry : known) {
    if (entry.type.is(type)) return entry;
  }
  const bool resolves = nb::hasattr(type, "is_neg") && nb::hasattr(type, "resolve_neg");
  known.push_back({nb::borrow(type), exchange_of(type), resolves ? nb::object(type.attr("is_neg")) : nb::object(), is_masked_array(type),
                   nb::isinstance<Stored>(object)});
  return known.back();
}

// True for a tensor with PyTorch's negative bit (the imaginary part of a conjugate), which DLPack says nothing of.
bool is_negated(const KnownType& type, nb::handle object) {
  if (!type.is_neg.is_valid()) return false;
  PyObject* argument = object.ptr();
  PyObject* answer = waiting_for_gil([&] { return PyObject_Vectorcall(type.is_neg.ptr(), &argument, 1, nullptr); });
  if (!answer) nb::raise_python_error();
  return nb::steal(answer).ptr() == Py_True;
}

// True for a complex tensor with PyTorch's conjugate bit.
bool is_conjugated(nb::handle object) {
  return nb::hasattr(object, "is_conj") && call_method(object, "is_conj").ptr() == Py_True;
}

int32_t sized(int32_t first, int64_t bytes) {
  switch (bytes) {
    case 1: return first;
    case 2: return first + 1;
    case 4: return first + 2;
    case 8: return first + 3;
    default: return -1;
  }
}

// -1 = a dtype that disc does not have.
int32_t dtype_of(DLDataType type) {
  if (type.lanes != 1 || type.bits % 8 != 0) return -1;
  const int64_t bytes = type.bits / 8;
  switch (type.code) {
    case kDLBool: return bytes == 1 ? RAL_I1 : -1;
    case kDLInt: return sized(RAL_I8, bytes);
    case kDLUInt: return sized(RAL_UI8, bytes);
    case kDLBfloat: return bytes == 2 ? RAL_BF16 : -1;
    case kDLFloat: return bytes == 2 ? RAL_F16 : bytes == 4 ? RAL_F32 : bytes == 8 ? RAL_F64 : -1;
    case kDLComplex: return bytes == 8 ? RAL_C64 : bytes == 16 ? RAL_C128 : -1;
    default: return -1;
  }
}

DLDataType dl_type(int32_t dtype) {
  const auto bits = static_cast<uint8_t>(8 * ral_dtype_size(dtype));
  if (dtype == RAL_I1) return {kDLBool, 8, 1};
  if (dtype == RAL_BF16) return {kDLBfloat, 16, 1};
  if (dtype >= RAL_C64) return {kDLComplex, bits, 1};
  if (dtype >= RAL_F16) return {kDLFloat, bits, 1};
  return {static_cast<uint8_t>(dtype >= RAL_UI8 ? kDLUInt : kDLInt), bits, 1};
}

// A struct format character of the buffer protocol, of elements of so many bytes; native byte order only.
int32_t dtype_of(std::string_view format, int64_t bytes) {
  const bool marked = !format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<');
  if (marked) format.remove_prefix(1);
  if (format == "Zf") return bytes == 8 ? RAL_C64 : -1;
  if (format == "Zd") return bytes == 16 ? RAL_C128 : -1;
  if (format.size() != 1) return -1;
  switch (format.back()) {
    case '?': return bytes == 1 ? RAL_I1 : -1;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n': return sized(RAL_I8, bytes);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N': return sized(RAL_UI8, bytes);
    case 'e': return bytes == 2 ? RAL_F16 : -1;
    case 'f': return bytes == 4 ? RAL_F32 : -1;
    case 'd': return bytes == 8 ? RAL_F64 : -1;
    default: return -1;
  }
}

ral_tensor from_dl(const DLTensor& tensor, const Place& place) {
  const bool gpu = tensor.device.device_type == kDLCUDA && tensor.device.device_id >= 0 && tensor.device.device_id <= UINT8_MAX;
  if (tensor.device.device_type != kDLCPU && !gpu) {
    raise(RAL_ERROR_DEVICE, place.text() + "is on DLPack device type " + std::to_string(tensor.device.device_type) + ":" +
                                std::to_string(tensor.device.device_id) + ", which disc makes no code for");
  }
  if (gpu && !place.gpus) {
    raise(RAL_ERROR_DEVICE,
          place.text() + "is on cuda:" + std::to_string(tensor.device.device_id) + ", the artifact has code for the CPU only");
  }
  const int32_t dtype = dtype_of(tensor.dtype);
  if (dtype < 0) raise(RAL_ERROR_DTYPE, place.text() + "has a dtype that disc does not support");
  const bool empty = std::find(tensor.shape, tensor.shape + tensor.ndim, 0) != tensor.shape + tensor.ndim;
  if (!tensor.data && !empty) raise(RAL_ERROR_DTYPE, place.text() + "has no memory of its own (a fake tensor, or one that wraps another)");
  const auto device = static_cast<uint8_t>(gpu ? RAL_CUDA : RAL_CPU), id = static_cast<uint8_t>(gpu ? tensor.device.device_id : 0);
  return {static_cast<char*>(tensor.data) + tensor.byte_offset, tensor.shape, tensor.strides, tensor.ndim, static_cast<uint16_t>(dtype),
          device, id};
}

constexpr Py_ssize_t no_dims = 0;  // of rank 0, but not null

ral_tensor from_scalar(nb::handle object, const Place& place, Keeper& keeper) {
  if (PyFloat_Check(object.ptr())) {
    keeper.real = PyFloat_AsDouble(object.ptr());
    return {&keeper.real, &no_dims, nullptr, 0, RAL_F64, RAL_CPU, 0};
  }
  int overflow = 0;
  keeper.integer = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow) raise(RAL_ERROR_DTYPE, place.text() + "the int does not fit into 64 bits");
  const uint16_t dtype = PyBool_Check(object.ptr()) ? RAL_I1 : RAL_I64;
  return {&keeper.integer, &no_dims, nullptr, 0, dtype, RAL_CPU, 0};
}

ral_tensor from_exchange(nb::handle object, const DLPackExchangeAPI* exchange, const Place& place) {
  DLTensor tensor;
  if (exchange->dltensor_from_py_object_no_sync(object.ptr(), &tensor) != 0) {
    nb::python_error cause;
    raise_unreadable(place, cause);
  }
  return from_dl(tensor, place);
}

// The dtype of a view; raises InputTypeError where disc has none.
int32_t view_dtype(const Py_buffer& view, const Place& place) {
  const std::string_view format = view.format ? view.format : "B";
  const int32_t dtype = dtype_of(format, view.itemsize);
  if (dtype == RAL_UI16 && place.info.dtype == RAL_BF16) return RAL_BF16;  // NumPy has no bf16: its bits come as uint16
  if (dtype >= 0) return dtype;
  const bool swapped = format.size() == 2 && (format[0] == '>' || format[0] == '!') && dtype_of(format.substr(1), view.itemsize) >= 0;
  raise(RAL_ERROR_DTYPE, place.text() + "has the unsupported element format '" + std::string(format) + "'" +
                             (swapped ? ", the byte order of another machine" : ""));
}

// NumPy arrays of ml_dtypes.bfloat16 have no format of the buffer protocol: their bits are read. Null for anything else.
nb::object bf16_bits(nb::handle object) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  if (std::string_view(nb::str(nb::getattr(dtype, "name", nb::none())).c_str()) != "bfloat16") return {};
  return call_python(attribute(object, "view"), nb::make_tuple("uint16"));
}

ral_tensor from_buffer(nb::handle object, const Place& place, Keeper& keeper) {
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (place.writable ? PyBUF_WRITABLE : 0);
  const auto acquire = [&](PyObject* from) {
    return waiting_for_gil([&] { return PyObject_GetBuffer(from, &keeper.view, flags); }) == 0;
  };
  bool bits = false;
  if (!acquire(object.ptr())) {
    nb::python_error cause;
    keeper.owner = cause.matches(PyExc_ValueError) ? bf16_bits(object) : nb::object();
    bits = keeper.owner.is_valid() && acquire(keeper.owner.ptr());
    if (!bits) raise_unreadable(place, cause);
  }
  const Py_buffer& view = keeper.view;
  const auto dtype = static_cast<uint16_t>(bits ? static_cast<int32_t>(RAL_BF16) : view_dtype(view, place));
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
  if (view.ndim > 0 && !view.shape) raise(RAL_ERROR_DTYPE, place.text() + "its buffer does not say its shape");
  const auto* dims = reinterpret_cast<const int64_t*>(view.ndim ? view.shape : &no_dims);
  ral_tensor tensor{view.buf, dims, nullptr, view.ndim, dtype, RAL_CPU, 0};
  if (!view.strides) return tensor;  // ctypes leaves them out, whatever was asked for: row-major
  keeper.strides.reserve(static_cast<size_t>(view.ndim));
  for (int i = 0; i < view.ndim; ++i) {
    if (view.suboffsets && view.suboffsets[i] >= 0)
      raise(RAL_ERROR_DTYPE, place.text() + "its rows are reached through pointers; make it contiguous");
    if (view.strides[i] % view.itemsize != 0)
      raise(RAL_ERROR_DTYPE, place.text() + "its strides are no multiple of its element size; make it contiguous");
    keeper.strides.push_back(view.strides[i] / view.itemsize);
  }
  tensor.strides = keeper.strides.data();
  return tensor;
}

// Runs `body`; a Python error in it becomes InputTypeError.
template <typename Body>
auto reading(const Place& place, Body body) {
  try {
    return body();
  } catch (nb::python_error& cause) {
    raise_unreadable(place, cause);
  } catch (const nb::cast_error&) {
    raise(RAL_ERROR_DTYPE, place.text() + "its __dlpack_device__ is not a pair of integers");
  }
}

// On a GPU the producer makes the stream of the call wait for what it has asked for; a framework with the exchange interface need not, as
// the call runs on its own stream.
nb::object dlpack_capsule(nb::handle object, bool gpu) {
  const bool tracked = PyObject_IsTrue(nb::getattr(object, "requires_grad", nb::bool_(false)).ptr()) == 1;
  const nb::object plain = tracked ? call_method(object, "detach") : nb::borrow(object);
  nb::dict options;
  if (gpu) options["stream"] = python_stream ? std::max<int64_t>(*python_stream, 1) : known_type(object).exchange ? -1 : 1;
  nb::dict plain_options = nb::borrow<nb::dict>(options.attr("copy")());
  options["max_version"] = nb::make_tuple(DLPACK_MAJOR_VERSION, 0);
  try {
    return call_python(attribute(plain, "__dlpack__"), nb::make_tuple(), options.ptr());
  } catch (nb::python_error& refused) {
    if (!refused.matches(PyExc_TypeError)) throw;  // a producer from before DLPack 1.0 does not know max_version
  }
  return call_python(attribute(plain, "__dlpack__"), nb::make_tuple(), plain_options.ptr());
}

// The slow path, for tensors without the C exchange interface. The capsule is kept, not consumed: the memory is only borrowed.
ral_tensor from_dlpack(nb::handle object, const Place& place, Keeper& keeper) {
  const auto device = reading(place, [&] { return nb::cast<std::pair<int32_t, int32_t>>(call_method(object, "__dlpack_device__")); });
  if (device.first != kDLCPU && (device.first != kDLCUDA || !place.gpus))  // refused before anything is asked of it
    return from_dl({nullptr, {static_cast<DLDeviceType>(device.first), device.second}, 0, {kDLInt, 8, 1}, nullptr, nullptr, 0}, place);
  keeper.owner = reading(place, [&] { return dlpack_capsule(object, device.first == kDLCUDA); });
  PyObject* capsule = keeper.owner.ptr();
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* managed = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != DLPACK_MAJOR_VERSION) raise(RAL_ERROR_DTYPE, place.text() + "uses an unknown version of DLPack");
    if (place.writable && managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) raise(RAL_ERROR_DTYPE, place.text() + "is read-only");
    return from_dl(managed->dl_tensor, place);
  }
  if (!PyCapsule_IsValid(capsule, "dltensor")) raise(RAL_ERROR_DTYPE, place.text() + "its __dlpack__ returned something else");
  return from_dl(static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"))->dl_tensor, place);
}

DLDevice device_of(const ral_tensor& tensor) {
  if (tensor.device == RAL_CUDA) return {kDLCUDA, tensor.device_id};
  return {kDLCPU, 0};
}

// An output of ral_call that a framework owns through DLPack.
struct OwnedOutput {
  DLManagedTensorVersioned managed;
  ral_tensor tensor;

  static void release(DLManagedTensorVersioned* self) {
    auto* owned = static_cast<OwnedOutput*>(self->manager_ctx);
    ral_release(&owned->tensor);
    delete owned;
  }
};

// A tensor whose memory somebody else owns; its dims and strides.
struct LentTensor {
  DLManagedTensorVersioned managed;
  std::vector<int64_t> dims, strides;

  static void release(DLManagedTensorVersioned* self) { delete static_cast<LentTensor*>(self->manager_ctx); }
};

// The framework's object for `managed`, of `owner`, which it takes, also when it fails.
template <typename Owner>
nb::object exchanged(const DLPackExchangeAPI* exchange, Owner* owner, const ral_tensor& tensor) {
  owner->managed = {{DLPACK_MAJOR_VERSION, 0},
                    owner,
                    Owner::release,
                    0,
                    {tensor.data,
                     device_of(tensor),
                     tensor.rank,
                     dl_type(tensor.dtype),
                     const_cast<int64_t*>(tensor.dims),
                     const_cast<int64_t*>(tensor.strides),
                     0}};
  void* object = nullptr;
  if (exchange->managed_tensor_to_py_object_no_sync(&owner->managed, &object) != 0) nb::raise_python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

nb::object through_exchange(const DLPackExchangeAPI* exchange, ral_tensor& output) {
  auto* owned = new OwnedOutput{};
  owned->tensor = std::exchange(output, {});
  return exchanged(exchange, owned, owned->tensor);
}

// Framework: nb::numpy, or nb::array_api for a plain object with `__dlpack__`. NumPy has no bf16: its bits come as uint16.
template <typename Framework>
nb::object through_nanobind(ral_tensor& made) {
  auto kept = std::make_unique<ral_tensor>(made);
  const nb::capsule owner(kept.get(), [](void* pointer) noexcept {
    auto* tensor = static_cast<ral_tensor*>(pointer);
    ral_release(tensor);
    delete tensor;
  });
  const ral_tensor& output = *kept.release();
  made = {};
  const bool bits_only = std::is_same_v<Framework, nb::numpy> && output.dtype == RAL_BF16;
  const DLDataType type = dl_type(bits_only ? static_cast<int32_t>(RAL_UI16) : output.dtype);
  const nb::dlpack::dtype element{type.code, type.bits, type.lanes};
  const nb::ndarray<Framework> array(output.data, static_cast<size_t>(output.rank), reinterpret_cast<const size_t*>(output.dims), owner,
                                     output.strides, element, device_of(output).device_type, device_of(output).device_id);
  return nb::cast(array);
}

// `ral_set_lender`'s. Needs no GIL. What the framework says of a failure is not needed: the runtime says how much was asked for.
int32_t lend(void* state, const ral_tensor* wanted, ral_lent* lent) {
  const auto* exchange = static_cast<const DLPackExchangeAPI*>(state);
  DLTensor prototype{nullptr, device_of(*wanted), wanted->rank, dl_type(wanted->dtype), const_cast<int64_t*>(wanted->dims), nullptr, 0};
  DLManagedTensorVersioned* made = nullptr;
  if (exchange->managed_tensor_allocator(&prototype, &made, nullptr, [](void*, const char*, const char*) {}) != 0 || !made) return 1;
  const auto release = [](void* owner) {
    auto* tensor = static_cast<DLManagedTensorVersioned*>(owner);
    if (tensor->deleter) tensor->deleter(tensor);
  };
  *lent = {static_cast<char*>(made->dl_tensor.data) + made->dl_tensor.byte_offset, made, release};
  return 0;
}

nb::object to_python(const Kind& kind, ral_tensor& output) {
  if (kind.exchange) return through_exchange(kind.exchange, output);
  if (!kind.from_dlpack.is_valid() && output.device == RAL_CPU) return through_nanobind<nb::numpy>(output);
  const nb::object plain = through_nanobind<nb::array_api>(output);
  return !kind.from_dlpack.is_valid() || kind.from_dlpack.is_none() ? plain : call_python(kind.from_dlpack, nb::make_tuple(plain));
}

}  // namespace

void ask_python() {
  thread_local bool asked = false;
  if (!asked) ral_set_stop(asked_python, nullptr);
  asked = true;
}

bool python_says_stop() { return asked_python(nullptr) != 0; }

void set_stop(nb::handle function) {
  Py_XDECREF(python_stop);
  python_stop = function.is_none() ? nullptr : function.inc_ref().ptr();
}

nb::object set_observer(nb::handle function) {
  nb::object before = python_observer ? nb::steal(python_observer) : nb::none();
  python_observer = function.is_none() ? nullptr : function.inc_ref().ptr();
  ral_set_observer(python_observer ? tell_python : nullptr, nullptr);
  return before;
}

void set_stream(const std::optional<int64_t>& stream) { python_stream = stream; }

void* stream_of(const Kind& kind, int32_t gpu) {
  if (python_stream) return reinterpret_cast<void*>(static_cast<uintptr_t>(*python_stream));
  void* stream = nullptr;
  if (!kind.exchange || !kind.exchange->current_work_stream) return stream;
  if (kind.exchange->current_work_stream(kDLCUDA, gpu, &stream) != 0) nb::raise_python_error();
  return stream;
}

namespace {

thread_local Lending lending;

void set_lending(const Lending& next) {
  lending = next;
  ral_set_lender(next.from ? lend : nullptr, const_cast<DLPackExchangeAPI*>(next.from), next.count);
}

const DLPackExchangeAPI* lender_of(const Kind& kind) {
  const bool lends = !python_stream && kind.exchange && kind.exchange->current_work_stream && kind.exchange->managed_tensor_allocator;
  return lends ? kind.exchange : nullptr;
}

}  // namespace

FrameworkMemory::FrameworkMemory(const Kind& kind, size_t count) : before_(lending) {
  set_lending({lender_of(kind), static_cast<int32_t>(count)});
}

FrameworkMemory::~FrameworkMemory() { set_lending(before_); }

void raise(ral_status status, const std::string& message) {
  if ((status == RAL_ERROR_CANCELLED || status == RAL_ERROR_WRITTEN) && PyErr_Occurred()) nb::raise_python_error();
  const nb::object type = nb::module_::import_("disc.errors").attr(kErrorNames.at(static_cast<size_t>(status)));
  PyErr_SetString(type.ptr(), message.c_str());
  nb::raise_python_error();
}

std::string Place::text() const {
  const std::string name = info.name ? " '" + std::string(info.name) + "'" : "";  // one argument too many has no name
  return (writable && !info.written ? "output" : "input") + name + " (" + kind + " " + std::to_string(index) + "): ";
}

Borrowed::~Borrowed() {
  for (Keeper& keeper : keepers_) {
    if (keeper.view.obj) PyBuffer_Release(&keeper.view);
  }
}

void Borrowed::add(nb::handle object, const Place& place) {
  PyObject* pointer = object.ptr();
  const bool scalar = PyLong_Check(pointer) || PyFloat_Check(pointer);
  if (!scalar && !first_) first_ = pointer;
  tensors_.push_back(scalar && !place.writable ? from_scalar(object, place, keeper()) : read(object, place));
  if (tensors_.back().device == RAL_CPU || on_gpu_ >= 0) return;
  on_gpu_ = count() - 1;
  first_ = pointer;
}

void Borrowed::add_number(const Number& number, size_t bytes) {
  Keeper& kept = keeper();
  if (number.kind == Number::kInteger && bytes == 0) {
    kept.integer = number.integer;
    tensors_.push_back({&kept.integer, &no_dims, nullptr, 0, RAL_I64, RAL_CPU, 0});
    return;
  }
  kept.real = number.kind == Number::kReal ? number.real : static_cast<double>(number.integer);
  if (bytes == sizeof(float)) {
    const auto narrow = static_cast<float>(kept.real);
    std::memcpy(&kept.real, &narrow, sizeof narrow);
  }
  tensors_.push_back({&kept.real, &no_dims, nullptr, 0, static_cast<uint16_t>(bytes == sizeof(float) ? RAL_F32 : RAL_F64), RAL_CPU, 0});
}

ral_tensor Borrowed::read(nb::handle object, const Place& place) {
  const KnownType& type = known_type(object);
  if (type.stored) return nb::cast<const Stored&>(object).tensor;
  if (type.masked) {
    raise(RAL_ERROR_DTYPE, place.text() + "a masked array, whose mask would be lost: give .filled(value), or .data for all of it");
  }
  if (reading(place, [&] { return is_negated(type, object); })) {
    if (place.writable) raise(RAL_ERROR_DTYPE, place.text() + "has the negative bit set; give resolve_neg() of it");
    resolved_.push_back(reading(place, [&] { return call_method(object, "resolve_neg"); }));
    return read(resolved_.back(), place);
  }
  const DLPackExchangeAPI* exchange = type.exchange;
  // The exchange interface does not say whether the memory may be written.
  if (exchange && !place.writable) {
    const ral_tensor tensor = from_exchange(object, exchange, place);
    if (tensor.dtype < RAL_C64 || !reading(place, [&] { return is_conjugated(object); })) return tensor;
    resolved_.push_back(reading(place, [&] { return call_method(object, "resolve_conj"); }));
    return from_exchange(resolved_.back(), exchange, place);
  }
  if (PyObject_CheckBuffer(object.ptr())) return from_buffer(object, place, keeper());
  if (nb::hasattr(object, "__dlpack__")) return from_dlpack(object, place, keeper());
  raise(RAL_ERROR_DTYPE, place.text() + "expected a tensor, got " + Py_TYPE(object.ptr())->tp_name);
}

std::optional<DLTensor> dl_tensor(nb::handle object) {
  const KnownType& type = known_type(object);
  DLTensor tensor;
  if (!type.exchange) return std::nullopt;
  if (type.exchange->dltensor_from_py_object_no_sync(object.ptr(), &tensor) == 0) return tensor;
  PyErr_Clear();
  return std::nullopt;
}

int32_t gpu_of(nb::handle object) {
  if (known_type(object).exchange) {
    const std::optional<DLTensor> tensor = dl_tensor(object);  // if it refuses, the call will say what is wrong
    return tensor && tensor->device.device_type == kDLCUDA ? tensor->device.device_id : -1;
  }
  if (PyObject_CheckBuffer(object.ptr()) || !nb::hasattr(object, "__dlpack_device__")) return -1;
  try {
    const auto device = nb::cast<std::pair<int32_t, int32_t>>(call_method(object, "__dlpack_device__"));
    return device.first == kDLCUDA ? device.second : -1;
  } catch (nb::python_error&) {  // as above
    return -1;
  } catch (const nb::cast_error&) {
    return -1;
  }
}

bool Borrowed::may_replace(const nb::tuple& objects, const std::vector<int32_t>& replaces) const {
  const auto fits = [&](int32_t place) { return place < 0 || known_type(objects[static_cast<size_t>(place)]).exchange; };
  return !replaces.empty() && resolved_.empty() && std::all_of(replaces.begin(), replaces.end(), fits);
}

Kind Borrowed::kind(nb::handle otherwise) const {
  const nb::handle first = first_ ? nb::handle(first_) : otherwise;
  if (const DLPackExchangeAPI* exchange = known_type(first).exchange) return {exchange, {}};
  if (first.is_none() || PyObject_CheckBuffer(first.ptr())) return {};
  const std::string module = nb::cast<std::string>(first.type().attr("__module__"));
  const nb::dict modules = nb::module_::import_("sys").attr("modules");
  const nb::object root = modules.attr("get")(module.substr(0, module.find('.')));
  return {nullptr, nb::getattr(root, "from_dlpack", nb::none())};
}

nb::object results(const Kind& kind, std::span<ral_tensor> outputs, bool single) {
  if (single) return to_python(kind, outputs[0]);
  nb::list list;
  for (ral_tensor& each : outputs) list.append(to_python(kind, each));
  return nb::tuple(list);
}

nb::object results_or_inputs(const Kind& kind, std::span<ral_tensor> outputs, bool single, const nb::tuple& arguments,
                             const std::vector<int32_t>& replaces) {
  const auto one = [&](size_t i) {
    return outputs[i].dims ? to_python(kind, outputs[i]) : nb::borrow(arguments[static_cast<size_t>(replaces.at(i))]);
  };
  try {
    if (single) return one(0);
    nb::list list;
    for (size_t i = 0; i < outputs.size(); ++i) list.append(one(i));
    return nb::tuple(list);
  } catch (nb::python_error& cause) {
    if (!cause.matches(PyExc_Exception)) throw;
    const nb::object type = nb::module_::import_("disc.errors").attr("WrittenError");
    nb::raise_from(cause, type.ptr(), "the call has written its inputs, and its results could not be handed over");
  }
}

nb::object lend(const Kind& kind, const ral_tensor& tensor) {
  auto lent = std::make_unique<LentTensor>();
  lent->dims.assign(tensor.dims, tensor.dims + tensor.rank);
  lent->strides.assign(lent->dims.size(), 1);
  for (size_t i = lent->dims.size(); i-- > 1;) lent->strides[i - 1] = lent->strides[i] * std::max<int64_t>(lent->dims[i], 1);
  const ral_tensor described{tensor.data, lent->dims.data(), lent->strides.data(), tensor.rank, tensor.dtype, RAL_CPU, 0};
  return exchanged(kind.exchange, lent.release(), described);
}

ral_status copy_elements(const ral_tensor& from, const ral_tensor& to) {
  size_t bytes = dl_type(from.dtype).bits / 8;
  for (int32_t i = 0; i < from.rank; ++i) {
    if (from.dims[i] != to.dims[i]) return RAL_ERROR_SHAPE;
    bytes *= static_cast<size_t>(from.dims[i]);
  }
  if (bytes > 0) std::memcpy(to.data, from.data, bytes);
  return RAL_OK;
}

}  // namespace ral::python
