/* The least that a call of C code costs in CPython: two arguments in, the first one out. As a
 * function, whose call CPython specialises, and as an object with a vectorcall, whose call it doesn't;
 * with the GIL released meanwhile; with a new NumPy array for a result.
 *
 * Beside them, marks for valgrind's callgrind, which do nothing outside of it: `mark(name)` writes the
 * instructions since the last mark to a file of their own.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#if defined(__has_include)
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define HAVE_MARKS 1
#endif
#endif
#ifndef HAVE_MARKS
#define HAVE_MARKS 0
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#endif

static PyObject *first(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "first() takes 2 arguments, %zd given", nargs);
        return NULL;
    }
    Py_INCREF(args[0]);
    return args[0];
}

static PyObject *first_without_gil(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    PyObject *result;
    Py_BEGIN_ALLOW_THREADS
    result = nargs == 2 ? args[0] : NULL;
    Py_END_ALLOW_THREADS
    if (result == NULL) {
        return first(module, args, nargs);
    }
    Py_INCREF(result);
    return result;
}

static PyObject *new_array(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    PyArrayObject *like;
    if (nargs != 2 || !PyArray_Check(args[0])) {
        return first(module, args, nargs);
    }
    like = (PyArrayObject *)args[0];
    Py_INCREF(PyArray_DESCR(like));
    return PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(like), PyArray_NDIM(like),
                                PyArray_DIMS(like), NULL, NULL, 0, NULL);
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
} Callable;

static PyObject *call_first(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    if (names != NULL && PyTuple_GET_SIZE(names) != 0) {
        PyErr_SetString(PyExc_TypeError, "first() takes no keyword arguments");
        return NULL;
    }
    return first(self, args, PyVectorcall_NARGS(nargsf));
}

static PyTypeObject callable_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "keyfold_fastcall.Callable",
    .tp_basicsize = sizeof(Callable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Callable, call),
    .tp_call = PyVectorcall_Call,
};

static PyObject *start(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    Py_RETURN_NONE;
}

static PyObject *mark(PyObject *module, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    (void)module;
    if (text == NULL) {
        return NULL;
    }
    CALLGRIND_DUMP_STATS_AT(text);
    CALLGRIND_ZERO_STATS;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"first", (PyCFunction)(void (*)(void))first, METH_FASTCALL, "first(x, y) -> x"},
    {"first_without_gil", (PyCFunction)(void (*)(void))first_without_gil, METH_FASTCALL,
     "first(x, y) -> x, with the GIL released meanwhile"},
    {"new_array", (PyCFunction)(void (*)(void))new_array, METH_FASTCALL,
     "new_array(x, y) -> an array of x's shape and dtype"},
    {"start", start, METH_NOARGS, "Begin to count instructions."},
    {"mark", mark, METH_O, "Write the instructions since the last mark to a file."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "keyfold_fastcall", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_keyfold_fastcall(void) {
    PyObject *module;
    Callable *object;
    import_array();
    if (PyType_Ready(&callable_type) < 0 || (module = PyModule_Create(&definition)) == NULL) {
        return NULL;
    }
    object = PyObject_New(Callable, &callable_type);
    if (object != NULL) {
        object->call = call_first;
    }
    if (object == NULL || PyModule_AddObject(module, "first_object", (PyObject *)object) < 0) {
        Py_XDECREF(object);
        Py_DECREF(module);
        return NULL;
    }
    if (PyModule_AddIntConstant(module, "HAVE_MARKS", HAVE_MARKS) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
