/* A libcudnn with two engines, which plans every graph and writes down each run: engine, workspace, and the address of
 * each tensor. FAKE_LOG is the file; FAKE_PROFILE the card's properties; FAKE_EXECUTE a status that runs return. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEUR_MODE = 200, RESULTS = 202, CFG_ENGINE = 300, CFG_KNOBS = 302, PLAN_HANDLE = 400, PLAN_CONFIG = 401,
       PLAN_WORKSPACE = 402, PLAN_JSON = 405, PACK_UIDS = 1000, PACK_POINTERS = 1001, PACK_WORKSPACE = 1003,
       ENGINE_INDEX = 1301, ENGINE_NOTE = 1303, ENGINE_BEHAVIOR = 1305, PROPERTIES_JSON = 2702 };

typedef struct descriptor {
    int kind, engine, mode, handle;
    char *text;
    int64_t uids[64];
    void *pointers[64], *workspace;
    int count;
} descriptor;

size_t cudnnGetVersion(void) { return 92700; }
size_t cudnnGetCudartVersion(void) { return 13040; }
void cudnnGetLastErrorString(char *text, size_t length) { snprintf(text, length, "the fake library was asked to fail"); }
int cudnnCreate(void **handle) { *handle = malloc(1); return 0; }
int cudnnDestroy(void *handle) { free(handle); return 0; }
int cudnnSetStream(void *handle, void *stream) { return handle && !stream ? 0 : 2000; }

int cudnnBackendCreateDescriptor(int kind, void **to) {
    descriptor *made = calloc(1, sizeof *made);
    made->kind = kind;
    *to = made;
    return 0;
}
int cudnnBackendDestroyDescriptor(void *d) {
    free(((descriptor *)d)->text);
    free(d);
    return 0;
}
int cudnnBackendFinalize(void *d) { return d ? 0 : 2000; }

int cudnnBackendSetAttribute(void *to, int attribute, int type, int64_t count, const void *values) {
    descriptor *d = to;
    (void)type;
    switch (attribute) {
    case HEUR_MODE: d->mode = *(const int *)values; break;
    case PLAN_HANDLE: d->handle = 1; break;
    case PLAN_CONFIG: d->engine = (*(descriptor *const *)values)->engine; break;
    case PLAN_JSON:
        d->text = strndup(values, (size_t)count);
        if (sscanf(d->text, "{\"engine\":%d}", &d->engine) != 1) return 2000;
        break;
    case PACK_UIDS: d->count = (int)count; memcpy(d->uids, values, (size_t)count * 8); break;
    case PACK_POINTERS: memcpy(d->pointers, values, (size_t)count * 8); break;
    case PACK_WORKSPACE: d->workspace = *(void *const *)values; break;
    default: break;
    }
    return 0;
}

static int text(const char *from, int64_t asked, int64_t *found, void *to) {
    int64_t length = (int64_t)strlen(from) + 1;
    if (asked) memcpy(to, from, (size_t)(asked < length ? asked : length));
    *found = length;
    return 0;
}

int cudnnBackendGetAttribute(void *of, int attribute, int type, int64_t asked, int64_t *found, void *to) {
    descriptor *d = of;
    char plan[64];
    (void)type;
    *found = 0;
    switch (attribute) {
    case RESULTS: {
        int64_t engines = d->mode == 3 ? 2 : 0;
        for (int64_t i = 0; i < asked && i < engines; i++) ((descriptor **)to)[i]->engine = (int)i;
        *found = asked && asked < engines ? asked : engines;
        break;
    }
    case CFG_ENGINE: ((descriptor **)to)[0]->engine = d->engine; *found = 1; break;
    case ENGINE_INDEX: *(int64_t *)to = d->engine; *found = 1; break;
    case PLAN_WORKSPACE: *(int64_t *)to = 1000 + d->engine; *found = 1; break;
    case PLAN_JSON: snprintf(plan, sizeof plan, "{\"engine\":%d}", d->engine); return text(plan, asked, found, to);
    case PROPERTIES_JSON: return text(getenv("FAKE_PROFILE"), asked, found, to);
    default: break;
    }
    return 0;
}

int cudnnBackendExecute(void *handle, void *of, void *with) {
    descriptor *plan = of, *pack = with;
    const char *status = getenv("FAKE_EXECUTE");
    if (!handle || !plan->handle) return 2000;
    if (status) return atoi(status);
    /* The first engine of the ranking is the slower one. */
    struct timespec slow = {0, 4000000};
    if (plan->engine == 0) nanosleep(&slow, NULL);
    FILE *log = fopen(getenv("FAKE_LOG"), "a");
    fprintf(log, "{\"engine\":%d,\"workspace\":%llu,\"tensors\":{", plan->engine, (unsigned long long)pack->workspace);
    for (int i = 0; i < pack->count; i++)
        fprintf(log, "%s\"%lld\":%llu", i ? "," : "", (long long)pack->uids[i], (unsigned long long)pack->pointers[i]);
    fprintf(log, "}}\n");
    fclose(log);
    return 0;
}
