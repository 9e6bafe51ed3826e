#include "python/host_functions.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "python/python_tensor.h"

namespace ral::python {

namespace {

struct PythonFunction {
  nb::object function;
  Kind kind;
};

// Holds the GIL, which the thread may have or not.
class WithGil {
 public:
  WithGil() {
    waiting_for_gil([this] { state_ = PyGILState_Ensure(); });
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_{};
};

thread_local PyObject* raised = nullptr;  // what a function of this thread's call raised, until the call raises itself

nb::object take_raised() { return nb::steal(std::exchange(raised, nullptr)); }

nb::object value_of(const nb::python_error& error) {
  nb::object value = nb::borrow(error.value());
  if (error.traceback().is_valid()) PyException_SetTraceback(value.ptr(), error.traceback().ptr());
  return value;
}

std::string text_of(nb::handle value) {
  PyObject* text = PyObject_Str(value.ptr());
  if (!text) PyErr_Clear();
  return text ? nb::str(nb::steal(text)).c_str() : "";
}

nb::object error_type(const char* name) { return nb::module_::import_("disc.errors").attr(name); }

void run(const ral_function_call* call) {
  const WithGil gil;
  take_raised();
  const auto& own = *static_cast<const PythonFunction*>(call->state);
  try {
    nb::list operands, results, numbers;
    for (int32_t i = 0; i < call->operand_count; ++i) operands.append(lend(own.kind, call->operands[i]));
    for (int32_t i = 0; i < call->result_count; ++i) results.append(lend(own.kind, call->results[i]));
    for (int32_t i = 0; i < call->number_count; ++i) numbers.append(call->numbers[i]);
    const nb::tuple arguments = nb::make_tuple(operands, results, numbers);
    PyObject* result = waiting_for_gil([&] { return PyObject_Call(own.function.ptr(), arguments.ptr(), nullptr); });
    if (!result) nb::raise_python_error();
    Py_DECREF(result);
  } catch (const nb::python_error& error) {
    const nb::object value = value_of(error);
    const bool ours = PyErr_GivenExceptionMatches(value.ptr(), error_type("CustomOpError").ptr());
    const std::string text = text_of(value);
    call->fail(call, (ours ? text : std::string(Py_TYPE(value.ptr())->tp_name) + (text.empty() ? "" : ": " + text)).c_str());
    if (!ours) raised = value.inc_ref().ptr();
  } catch (const std::exception& error) {
    call->fail(call, error.what());
  }
}

void release(void* state) {
  const WithGil gil;
  delete static_cast<PythonFunction*>(state);
}

nb::object& finder() {
  static auto& found = *new nb::object;  // never destroyed: it holds a Python object
  return found;
}

ral_status find(const char* name, ral_host_function* found, char* reason, size_t reason_size) {
  const WithGil gil;
  try {
    auto own = std::make_unique<PythonFunction>();
    PyObject* function = PyObject_CallFunction(finder().ptr(), "s", name);
    if (!function) nb::raise_python_error();
    own->function = nb::steal(function);
    own->kind = Borrowed().kind(own->function.attr("like"));
    if (!own->kind.exchange) nb::raise("its tensors cannot be lent: they lack the C exchange interface of DLPack");
    *found = {run, own.release(), release};
    return RAL_OK;
  } catch (const nb::python_error& error) {
    std::snprintf(reason, reason_size, "%s", text_of(error.value()).c_str());
  } catch (const std::exception& error) {
    std::snprintf(reason, reason_size, "%s", error.what());
  }
  return RAL_ERROR_ARTIFACT;
}

}  // namespace

void set_finder(const nb::object& find_in_python) {
  finder() = find_in_python;
  ral_set_finder(find);
}

void raise_failed_function(const std::string& message) {
  const nb::object cause = take_raised();
  if (cause.is_valid() && !PyErr_GivenExceptionMatches(cause.ptr(), PyExc_Exception)) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(cause.ptr())), cause.ptr());
    nb::raise_python_error();
  }
  const nb::object type = error_type("CustomOpError"), failed = type(message.c_str());
  if (cause.is_valid()) PyException_SetCause(failed.ptr(), nb::object(cause).release().ptr());
  PyErr_SetObject(type.ptr(), failed.ptr());
  nb::raise_python_error();
}

}  // namespace ral::python
