/* Plugins in C, each with one thing wrong, chosen by -DCASE=...
 *
 * They are plugins of ABI 1.0: its layouts are declared here and stay as they are, so that these tests
 * show that old plugins run on new hosts. Plugins of today include keyfold_plugin.h. */
#include <stdint.h>
#include <string.h>

typedef struct { const char *data; size_t len; } Text;
typedef struct Host Host;
typedef int (*Kernel)(void *, const void *, int32_t, void *);
typedef struct {
    uint32_t size;
    int32_t returns;
    Text op, key, name;
    Kernel function;
    void *data;
    void (*drop)(void *);
} Spec;
/* Of the table, what is used here. */
struct Host {
    uint32_t size, major, minor, reserved;
    void *(*define)(void *, Text);
    void *(*kernel)(void *, const Spec *);
    void *(*fallthrough)(void *, Text, Text);
    void *skipped[10];
    void *(*error_new)(Text, Text);
};
typedef struct {
    uint64_t magic;
    uint32_t major, minor;
    Text name, version;
    void *(*enter)(const Host *, void *);
} Descriptor;

#define TEXT(s) ((Text){s, sizeof(s) - 1})
#define GOOD 1
#define MAJOR 2
#define MINOR 3
#define MAGIC 4
#define FAILS 5
#define RETURNS 6
#define KEY 7
#define NO_CODE 8
#define SHORT 9
#define SILENT 10
#define NOT_A_PLUGIN 11
#define NO_FUNCTION 12
#define NO_SPEC 13
#define NO_REGISTER 14
#define CUT_TEXT 15
#define NULL_TEXT 16
#define CUT_NAME 17

#if CASE == NOT_A_PLUGIN
int unrelated(void) { return 1; }
#else

/* How often a kernel's data was given back, and whether the plugin ran at all. */
int dropped, entered;

static void drop(void *data) { *(int *)data += 1; }

static int answer(void *handle, const void *args, int32_t count, void *result) {
    (void)handle, (void)args, (void)count;
    if (CASE == SILENT)
        return 7;
    int64_t value = 42;
    int32_t kind = 1;
    memcpy(result, &kind, 4);
    memcpy((char *)result + 8, &value, 8);
    return 0;
}

static void *enter(const Host *host, void *registrar) {
    entered = 1;
    void *error = host->define(registrar, TEXT("in_c::answer() -> int"));
    if (error)
        return error;
    Spec spec = {sizeof spec,      1,      TEXT("in_c::answer"), TEXT("CPU"),
                 TEXT("answer"),   answer, &dropped,             drop};
    if (CASE == RETURNS) {
        spec.returns = 3;
        spec.op = TEXT("in_c::text");
        if ((error = host->define(registrar, TEXT("in_c::text() -> str"))))
            return error;
    }
    if (CASE == KEY)
        spec.key = TEXT("NoSuchKey");
    if (CASE == NO_CODE)
        spec.returns = 99;
    if (CASE == SHORT)
        spec.size -= 8;
    if (CASE == NO_FUNCTION)
        spec.function = 0;
    if (CASE == NULL_TEXT)
        spec.name.data = 0;
    if ((error = host->kernel(registrar, CASE == NO_SPEC ? 0 : &spec)))
        return error;
    if (CASE == CUT_TEXT) /* in the middle of a character */
        return host->error_new(TEXT("Value"), TEXT("no caf\xc3"));
    if (CASE == FAILS)
        return host->error_new(TEXT("Value"), TEXT("no licence for this machine"));
    return 0;
}

#define BYTES "keyfold\001"
#define BYTE(i) ((uint64_t)(unsigned char)BYTES[i] << (8 * i))
const Descriptor keyfold_plugin = {
    (BYTE(0) | BYTE(1) | BYTE(2) | BYTE(3) | BYTE(4) | BYTE(5) | BYTE(6) | BYTE(7)) ^
        (CASE == MAGIC),
    CASE == MAJOR ? 7 : 1,
    CASE == MINOR ? 900 : 0,
    {CASE == CUT_NAME ? "in-\xc3" : "in-c", 4},
    {"0.3.0", 5},
    CASE == NO_REGISTER ? 0 : enter,
};
#endif
